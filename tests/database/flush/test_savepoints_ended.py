"""A conflict or a deadlock, for which MariaDB ends the whole transaction, mostly in a savepoint.

The savepoint is gone with it. What comes out is the cause, and nothing of the transaction is
stored: neither what came before nor what comes after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    OptilockError,
    UnitOfWork,
    retrying,
    unit_of_work,
    watch,
)
from optilock.dialects.transient import is_transient
from optilock.testing import interleave
from tests.support.models import Account

pytestmark = pytest.mark.engines("mariadb", "mariadb-snapshot")
HEAVY = range(2, 10)  # the rival's rows: InnoDB ends the transaction that has changed fewer


@pytest.fixture
def accounts(store):
    store(Account(id=1, owner="first"), *(Account(id=n, owner="theirs") for n in HEAVY))


@contextlib.contextmanager
def rival(engine: Engine) -> Iterator[None]:
    """Another transaction has written the heavy rows, and waits for row 1, which we have."""
    with interleave(sessionmaker(engine), "rival") as (them,):
        them.do(lambda s: s.execute(text("UPDATE accounts SET owner = 'rival' WHERE id > 1")))
        step = them.start(
            lambda s: s.execute(text("UPDATE accounts SET owner = 'rival' WHERE id = 1"))
        )
        step.blocked()
        yield
        step.result()
        them.do(lambda s: s.rollback())


def touch_first(session: Session) -> None:
    """What the transaction has written before its savepoint."""
    session.execute(update(Account).where(Account.id == 1).values(owner="before"))


def write_second(session: Session) -> None:
    session.execute(text("UPDATE accounts SET owner = 'mine' WHERE id = 2"))


def number_of(error: BaseException) -> int:
    return error.orig.args[0]


def owners(engine: Engine) -> list[str | None]:
    with Session(engine) as session:
        return list(session.scalars(select(Account.owner).where(Account.id < 4)))


def pooled(engine: Engine) -> set[int]:
    """The server's numbers of the connections that nobody has."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(engine.connect()) for _ in range(engine.pool.checkedin())]
        return {connection.scalar(text("SELECT CONNECTION_ID()")) for connection in free}


def must_be_rolled_back(session: Session) -> None:
    """Nothing more goes through, and COMMIT least of all."""
    for act in (lambda: session.execute(text("SELECT 1")), session.commit):
        with pytest.raises(PendingRollbackError):
            act()
    session.rollback()


def test_a_deadlock_in_a_savepoint_comes_out_as_it_is(engine, accounts, watched):
    session = watched()
    touch_first(session)
    with rival(engine):
        with pytest.raises(DBAPIError) as caught, session.begin_nested():
            write_second(session)
        assert number_of(caught.value) == 1213
        assert is_transient(caught.value)
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "theirs", "theirs"]
    touch_first(session)
    session.commit()
    assert owners(engine) == ["before", "theirs", "theirs"]


def test_so_it_does_from_a_flush_in_the_innermost_of_two(engine, accounts, watched):
    session = watched()
    second = session.get_one(Account, 2)
    touch_first(session)
    with (
        rival(engine),
        pytest.raises(DBAPIError) as caught,
        session.begin_nested(),
        session.begin_nested(),
    ):
        second.owner = "mine"
    assert number_of(caught.value) == 1213
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "theirs", "theirs"]
    assert second.owner == "theirs"


def test_a_savepoint_can_be_rolled_back_by_hand_and_the_transaction_is_still_over(
    engine, accounts, watched
):
    session = watched()
    touch_first(session)
    savepoint = session.begin_nested()
    with rival(engine), pytest.raises(DBAPIError):
        write_second(session)
    savepoint.rollback()
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "theirs", "theirs"]


def test_who_swallows_the_deadlock_cannot_go_on_either(engine, accounts, watched):
    session = watched()
    touch_first(session)
    with (
        rival(engine),
        pytest.raises(PendingRollbackError),
        session.begin_nested(),
        contextlib.suppress(DBAPIError),
    ):
        write_second(session)
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "theirs", "theirs"]


def test_all_connections_stay_in_the_pool(engine, accounts, watched):
    session, another = watched(), watched()
    touch_first(session)
    numbers = [one.scalar(text("SELECT CONNECTION_ID()")) for one in (session, another)]
    another.commit()
    with rival(engine), pytest.raises(DBAPIError), session.begin_nested():
        write_second(session)
    session.rollback()
    assert pooled(engine) & set(numbers) == set(numbers)


@pytest.mark.parametrize(
    "write",
    [
        lambda session: setattr(session.get_one(Account, 2), "owner", "mine"),
        lambda session: session.delete(session.get_one(Account, 2)),
    ],
    ids=["update", "delete"],
)
@pytest.mark.engines("mariadb-snapshot")
def test_a_conflict_in_a_savepoint_is_told_with_an_entry(engine, accounts, watched, other, write):
    session = watched()
    touch_first(session)
    session.get_one(Account, 2)
    other(Account, 2, owner="changed")
    with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
        write(session)
    assert number_of(caught.value.__cause__) == 1020
    [entry] = caught.value.entries
    assert (entry.identity, entry.database["owner"]) == ((2,), "changed")
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "changed", "theirs"]


ROWS = [{"id": 2, "owner": "mine", "version": 1}]


@pytest.mark.parametrize(
    "write",
    [
        lambda session: session.execute(update(Account), ROWS),
        lambda session: session.bulk_update_mappings(Account, ROWS),
        lambda session: session.get(Account, 2, with_for_update=True),
    ],
    ids=["by key", "mappings", "locking read"],
)
@pytest.mark.engines("mariadb-snapshot")
def test_a_statement_in_a_savepoint_raises_what_it_raises_outside(
    engine, accounts, watched, other, write
):
    session = watched()
    touch_first(session)
    session.scalars(select(Account.owner)).all()
    other(Account, 2, owner="changed")
    with pytest.raises(DBAPIError) as caught, session.begin_nested():
        write(session)
    assert number_of(caught.value) == 1020
    assert is_transient(caught.value)
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "changed", "theirs"]


@pytest.mark.parametrize("nested", ["begin_nested", "savepoint=True"])
def test_the_unit_runs_again_after_a_deadlock_in_a_savepoint(engine, accounts, nested):
    sessions = sessionmaker(engine)
    runs = []

    @unit_of_work(sessions, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        runs.append(1)
        touch_first(session)
        inner = (
            session.begin_nested()
            if nested == "begin_nested"
            else UnitOfWork(sessions, propagation="savepoint")
        )
        with rival(engine) if len(runs) == 1 else contextlib.nullcontext(), inner:
            write_second(session)

    work()
    assert len(runs) == 2
    assert owners(engine) == ["before", "mine", "theirs"]


@pytest.mark.engines("mariadb-snapshot")
@pytest.mark.parametrize("nested", ["begin_nested", "savepoint=True"])
def test_the_unit_runs_again_after_a_conflict_in_a_savepoint(engine, accounts, other, nested):
    sessions = sessionmaker(engine)
    seen = []

    @unit_of_work(sessions, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        touch_first(session)
        second = session.get_one(Account, 2)
        seen.append(second.owner)
        if len(seen) == 1:
            other(Account, 2, owner="changed")
        inner = (
            session.begin_nested()
            if nested == "begin_nested"
            else UnitOfWork(sessions, propagation="savepoint")
        )
        with inner:
            second.owner += "+mine"

    work()
    assert seen == ["theirs", "changed"]
    assert owners(engine) == ["before", "changed+mine", "theirs"]


def test_a_unit_that_catches_the_error_of_its_savepoint_is_not_stored(engine, accounts):
    sessions = sessionmaker(engine)
    refused = pytest.raises(OptilockError, match="cannot be committed")
    with refused as caught, UnitOfWork(sessions) as session:
        touch_first(session)
        swallowed = contextlib.suppress(DBAPIError)
        with rival(engine), swallowed, UnitOfWork(sessions, propagation="savepoint"):
            write_second(session)
        session.add(Account(id=99, owner="after"))
    assert caught.value.__cause__.args[0] == 1213
    assert owners(engine) == ["first", "theirs", "theirs"]
    with Session(engine) as session:
        assert session.get(Account, 99) is None


@pytest.fixture
def async_sessions(async_engine):
    from sqlalchemy.ext.asyncio import async_sessionmaker

    return async_sessionmaker(async_engine)


@pytest.mark.anyio
@pytest.mark.parametrize("nested", ["begin_nested", "savepoint=True"])
async def test_async_units_run_again_too(async_database, async_sessions, async_store, nested):
    engine = async_database.engine()
    async_store(*(Account(id=n, owner="theirs") for n in range(1, 10)))
    runs = []

    @unit_of_work(async_sessions, retry=retrying(wait_initial=0))
    async def work(session) -> None:
        runs.append(1)
        await session.run_sync(touch_first)
        inner = (
            session.begin_nested()
            if nested == "begin_nested"
            else AsyncUnitOfWork(async_sessions, propagation="savepoint")
        )
        with rival(engine) if len(runs) == 1 else contextlib.nullcontext():
            async with inner:
                await session.run_sync(write_second)

    await work()
    assert len(runs) == 2
    assert owners(engine) == ["before", "mine", "theirs"]
    engine.dispose()


@pytest.mark.anyio
async def test_a_watched_async_session_tells_the_deadlock(
    async_database, async_sessions, async_store
):
    engine = async_database.engine()
    async_store(*(Account(id=n, owner="theirs") for n in range(1, 10)))
    async with watch(async_sessions)() as session:
        await session.run_sync(touch_first)
        with rival(engine), pytest.raises(DBAPIError) as caught:
            async with session.begin_nested():
                await session.run_sync(write_second)
        assert number_of(caught.value) == 1213
        with pytest.raises(PendingRollbackError):
            await session.commit()
        await session.rollback()
    assert owners(engine)[:2] == ["theirs", "theirs"]
    engine.dispose()


# -- outside of a savepoint -----------------------------------------------------------------------


STATEMENTS = {
    "execute": write_second,
    "by key": lambda session: session.execute(update(Account), ROWS),
    "locking read": lambda session: session.get(Account, 2, with_for_update=True),
    "connection": lambda session: write_second(session.connection()),
    "flush": lambda session: (
        setattr(session.get_one(Account, 2), "owner", "mine"),
        session.flush(),
    ),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_who_swallows_a_deadlock_cannot_store_the_second_half(engine, accounts, watched, statement):
    session = watched()
    session.get_one(Account, 2)
    touch_first(session)
    number = session.scalar(text("SELECT CONNECTION_ID()"))
    with rival(engine):
        with pytest.raises(DBAPIError) as caught:
            STATEMENTS[statement](session)
        assert number_of(caught.value) == 1213
        assert is_transient(caught.value)
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "theirs", "theirs"]
    assert number in pooled(engine)  # nothing is wrong with the connection
    touch_first(session)
    session.commit()
    assert owners(engine) == ["before", "theirs", "theirs"]


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.engines("mariadb-snapshot")
def test_who_swallows_a_conflict_cannot_either(engine, accounts, watched, other, statement):
    session = watched()
    session.get_one(Account, 2)
    touch_first(session)
    other(Account, 2, owner="changed")
    with pytest.raises((DBAPIError, ConcurrencyError)):
        STATEMENTS[statement](session)
    must_be_rolled_back(session)
    assert owners(engine) == ["first", "changed", "theirs"]


def test_so_it_is_with_a_flush_and_a_commit_afterwards(engine, accounts, watched):
    session = watched()
    touch_first(session)
    with rival(engine), contextlib.suppress(DBAPIError):
        write_second(session)
    session.add(Account(id=99, owner="after"))
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    with pytest.raises(PendingRollbackError), session.begin():
        touch_first(session)
        with rival(engine), contextlib.suppress(DBAPIError):
            write_second(session)
    assert owners(engine) == ["first", "theirs", "theirs"]
    assert session.get(Account, 99) is None


def test_a_session_that_nobody_watches_is_left_alone(engine, accounts, watched):
    watched().scalar(text("SELECT 1"))
    with Session(engine) as session:
        touch_first(session)
        with rival(engine), contextlib.suppress(DBAPIError):
            write_second(session)
        session.execute(text("SELECT 1"))
        session.commit()


@pytest.mark.anyio
async def test_so_it_is_in_a_watched_async_session(async_database, async_sessions, async_store):
    engine = async_database.engine()
    async_store(*(Account(id=n, owner="theirs") for n in range(1, 10)))
    async with watch(async_sessions)() as session:
        await session.run_sync(touch_first)
        with rival(engine), pytest.raises(DBAPIError) as caught:
            await session.run_sync(write_second)
        assert number_of(caught.value) == 1213
        with pytest.raises(PendingRollbackError):
            await session.execute(text("SELECT 1"))
        with pytest.raises(PendingRollbackError):
            await session.commit()
        await session.rollback()
    assert owners(engine)[:2] == ["theirs", "theirs"]
    engine.dispose()
