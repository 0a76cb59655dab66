"""Units of work on real databases: what is stored, who joins whom, and what COMMIT can do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, String, event, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.orm.exc import StaleDataError

from optilock import events
from optilock._versioned import Versioned
from optilock._watched.session.record import is_watched
from optilock.errors import (
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConfigurationError,
    OptilockError,
    SeparateUnitWarning,
)
from optilock.resolvers.rules import client_wins, store_wins
from optilock.unit.async_unit import AsyncUnitOfWork
from optilock.unit.isolation import Isolation
from optilock.unit.retries import retrying
from optilock.unit.units import UnitOfWork, repeatable_read, unit_of_work
from tests.support.waiting import turn

pytestmark = pytest.mark.modes


class Base(DeclarativeBase):
    pass


class Account(Versioned, Base):
    __tablename__ = "unit_accounts"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int]
    owner: Mapped[str] = mapped_column(String(20), default="")


def two_accounts() -> list[Account]:
    return [Account(id=1, balance=10), Account(id=2, balance=20)]


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(*two_accounts())
    return sessionmaker(engine)


def stored(sessions: Any) -> list[int]:
    with sessions.begin() as session:
        return list(session.scalars(select(Account.balance).order_by(Account.id)))


def set_balance(sessions: sessionmaker[Session], account_id: int, balance: int) -> None:
    """What another program does."""
    with sessions.begin() as session:
        session.get_one(Account, account_id).balance = balance


def edit_stale(session: Session, sessions: sessionmaker[Session], balance: int) -> Account:
    """Read account 1, let another program change it, change it ourselves."""
    account = session.get_one(Account, 1)
    set_balance(sessions, 1, 99)
    account.balance = balance
    return account


@contextmanager
def heard() -> Iterator[list[events.Event]]:
    seen: list[events.Event] = []
    listener = events.listen(seen.append, written=False)
    try:
        yield seen
    finally:
        events.unlisten(listener)


def needs(engine: Engine, what: str, have: bool) -> None:
    if not have:
        pytest.skip(f"{engine.dialect.name} has no {what}")


def row_locks(engine: Engine) -> bool:
    return engine.dialect.name != "sqlite"


# -- one unit --------------------------------------------------------------------------------------


def test_a_unit_commits_when_its_block_is_left(sessions):
    with UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11

    assert stored(sessions) == [11, 20]


def test_an_error_that_leaves_the_block_rolls_back(sessions):
    with pytest.raises(KeyError), UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        session.flush()
        raise KeyError("mine")

    assert stored(sessions) == [10, 20]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_connection_goes_back_whatever_happens(sessions, engine, error):
    before = engine.pool.checkedout()
    try:
        with UnitOfWork(sessions) as session:
            session.get_one(Account, 1)
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass

    assert engine.pool.checkedout() == before


def test_an_engine_is_enough_and_its_objects_outlive_the_unit(sessions, engine):
    with UnitOfWork(engine) as session:
        account = session.get_one(Account, 1)
        account.balance = 11

    assert (account.balance, account.version) == (11, 2)


def test_the_callers_sessionmaker_is_not_changed(sessions):
    with UnitOfWork(sessions) as session:
        assert is_watched(session)

    assert not is_watched(sessions())


def test_listeners_and_later_settings_of_the_sessionmaker_count(sessions):
    flushes = []
    event.listen(sessions, "after_flush", lambda session, _: flushes.append(session))
    sessions.configure(info={"tenant": 7})

    with UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        assert session.info["tenant"] == 7

    assert flushes == [session]


def test_a_scoped_session_is_the_units_own_inside(sessions):
    scoped = scoped_session(sessions)
    outside = scoped()

    with UnitOfWork(scoped) as session:
        assert scoped() is session
        scoped.get_one(Account, 1).balance = 11

    assert scoped() is outside
    assert stored(sessions) == [11, 20]
    scoped.remove()


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_body_that_commits_by_itself_is_refused_and_nothing_is_stored(sessions, savepoint):
    refused = pytest.raises(ConfigurationError, match="at the end of its block")
    with refused, UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        if savepoint:
            session.begin_nested()
        session.commit()

    assert stored(sessions) == [10, 20]


def test_a_unit_whose_body_was_refused_a_commit_can_go_on(sessions):
    with UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        with pytest.raises(ConfigurationError, match="Nothing was committed"):
            session.commit()
        session.get_one(Account, 2).balance = 22

    assert stored(sessions) == [11, 22]


def test_an_inner_unit_cannot_commit_the_outer_one(sessions):
    with pytest.raises(ConfigurationError), UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        with UnitOfWork(sessions) as inner:
            inner.commit()

    assert stored(sessions) == [10, 20]


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_body_that_goes_on_after_the_end_is_told_so(sessions, end):
    refused = pytest.raises(ConfigurationError, match="went on after")
    with refused as caught, UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        getattr(session, end)()
        session.get_one(Account, 1).balance = 12

    assert isinstance(caught.value.__cause__, InvalidRequestError)
    assert stored(sessions) == [10, 20]


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_body_may_end_the_unit_with_nothing_stored(sessions, end):
    with UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        getattr(session, end)()

    assert stored(sessions) == [10, 20]


def test_a_stale_write_is_a_conflict(sessions):
    with pytest.raises(ConcurrencyError) as caught, UnitOfWork(sessions) as session:
        edit_stale(session, sessions, 11)

    assert [entry.identity for entry in caught.value.entries] == [(1,)]
    assert stored(sessions) == [99, 20]


def test_a_stale_write_is_a_conflict_at_repeatable_read_with_the_same_entries(sessions, engine):
    needs(engine, "writer beside an open snapshot", not journal(engine))
    with pytest.raises(ConcurrencyError) as caught, repeatable_read(sessions) as session:
        edit_stale(session, sessions, 11)

    assert [entry.identity for entry in caught.value.entries] == [(1,)]
    assert stored(sessions) == [99, 20]


def journal(engine: Engine) -> bool:
    """SQLite with a rollback journal: a reader keeps writers from committing."""
    if engine.dialect.name != "sqlite":
        return False
    with engine.connect() as connection:
        return connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal"


def test_a_commit_is_told_to_listeners(sessions):
    with heard() as seen, UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11

    [committed] = [e for e in seen if isinstance(e, events.Committed)]
    assert committed.attempts == 1
    assert type(committed.seconds) is float


def test_a_rollback_is_not_told_as_a_commit(sessions):
    with heard() as seen, pytest.raises(KeyError), UnitOfWork(sessions) as session:
        session.get_one(Account, 1)
        raise KeyError

    assert [type(one).__name__ for one in seen] == ["Failed"]


# -- units inside units ----------------------------------------------------------------------------


def test_an_inner_unit_joins_the_outer_one_and_commits_nothing(sessions):
    with UnitOfWork(sessions) as outer:
        with UnitOfWork(sessions) as inner:
            assert inner is outer
            inner.get_one(Account, 1).balance = 11
        assert stored(sessions) == [10, 20]

    assert stored(sessions) == [11, 20]


def test_an_inner_error_that_was_caught_outside_dooms_the_outer_unit(sessions):
    error = KeyError("inner")
    with (
        pytest.raises(OptilockError, match='propagation="savepoint"') as caught,
        UnitOfWork(sessions) as s,
    ):
        s.get_one(Account, 1).balance = 11
        try:
            with UnitOfWork(sessions):
                raise error
        except KeyError:
            pass

    assert caught.value.__cause__ is error
    assert stored(sessions) == [10, 20]


def test_a_savepoint_undoes_only_the_inner_unit(sessions):
    with UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        try:
            with UnitOfWork(sessions, propagation="savepoint") as inner:
                inner.get_one(Account, 2).balance = 21
                raise KeyError
        except KeyError:
            pass

    assert stored(sessions) == [11, 20]


def test_the_outer_unit_goes_on_after_the_flush_of_a_savepoint_has_failed(sessions):
    with UnitOfWork(sessions) as session:
        session.get_one(Account, 1).balance = 11
        with pytest.raises(IntegrityError), UnitOfWork(sessions, propagation="savepoint") as inner:
            inner.add(Account(id=3, balance=None))  # NOT NULL: found by the flush at its end
        session.add(Account(id=4, balance=40))

    assert stored(sessions) == [11, 20, 40]


def test_a_savepoint_stores_nothing_before_the_outer_unit_commits(sessions):
    """Also on SQLite, where RELEASE commits if nobody has sent a BEGIN."""
    with pytest.raises(KeyError), UnitOfWork(sessions) as session:
        session.get_one(Account, 1)
        with UnitOfWork(sessions, propagation="savepoint") as inner:
            inner.get_one(Account, 2).balance = 21
        raise KeyError

    assert stored(sessions) == [10, 20]


def test_an_independent_unit_commits_on_its_own(sessions):
    with pytest.raises(KeyError), UnitOfWork(sessions) as outer:
        with UnitOfWork(sessions, propagation="independent") as other:
            assert other is not outer
            other.get_one(Account, 2).balance = 21
        raise KeyError

    assert stored(sessions) == [10, 21]


def test_units_on_other_sessions_do_not_join(sessions, engine):
    told = pytest.warns(SeparateUnitWarning)
    with UnitOfWork(sessions) as outer, told, UnitOfWork(sessionmaker(engine)) as other:
        assert other is not outer


@pytest.mark.parametrize(
    "wanted",
    [{"isolation": Isolation.SERIALIZABLE}, {"read_only": True}, {"on_conflict": client_wins}],
)
def test_an_inner_unit_cannot_ask_for_what_the_outer_one_does_not_give(sessions, wanted):
    with UnitOfWork(sessions, on_conflict=store_wins):
        with pytest.raises(ConfigurationError, match=next(iter(wanted))):
            UnitOfWork(sessions, **wanted).__enter__()
        with UnitOfWork(sessions, on_conflict=store_wins):
            pass


def test_another_thread_starts_its_own_unit(sessions):
    found = []

    def work() -> None:
        with UnitOfWork(sessions) as session:
            found.append(session)

    with UnitOfWork(sessions) as outer:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert found
    assert found[0] is not outer


# -- retry and unit in one -------------------------------------------------------------------------


def test_a_decorated_function_runs_again_with_a_new_session_and_fresh_reads(sessions):
    """EX-12"""
    seen = []

    @unit_of_work(sessions, attempts=3)
    def deposit(session: Session, amount: int) -> int:
        seen.append(session)
        account = session.get_one(Account, 1)
        if len(seen) == 1:
            set_balance(sessions, 1, 50)
        account.balance += amount
        return account.balance

    with heard() as told:
        assert deposit(5) == 55
    assert len(set(seen)) == 2
    assert stored(sessions) == [55, 20]
    assert [e.attempts for e in told if isinstance(e, events.Committed)][-1] == 2


def test_a_decorated_function_joins_a_running_unit_and_runs_once(sessions):
    """EX-12"""
    calls = []

    @unit_of_work(sessions)
    def fail(session: Session) -> None:
        calls.append(session)
        raise ConcurrencyError

    with pytest.raises(ConcurrencyError), UnitOfWork(sessions) as outer:
        fail()

    assert calls == [outer]


def test_an_independent_function_runs_again_inside_a_running_unit(sessions):
    calls = []

    @unit_of_work(sessions, retry=retrying(attempts=3, wait_initial=0), propagation="independent")
    def fail(session: Session) -> None:
        calls.append(session)
        raise ConcurrencyError

    with UnitOfWork(sessions), pytest.raises(ConcurrencyError):
        fail()

    assert len(calls) == 3


def test_the_resolver_of_a_unit_settles_its_conflicts(sessions, engine):
    with UnitOfWork(sessions, on_conflict=client_wins, **read_committed(engine)) as session:
        edit_stale(session, sessions, 11)

    assert stored(sessions) == [11, 20]


def read_committed(engine: Engine) -> dict[str, Any]:
    """Where a conflict leaves the transaction alive."""
    return {"isolation": Isolation.READ_COMMITTED} if row_locks(engine) else {}


# -- transactions that the database ended ----------------------------------------------------------


def test_a_failed_transaction_is_never_reported_as_committed(sessions, engine):
    needs(engine, "transactions that fail as a whole", engine.dialect.name == "postgresql")
    with pytest.raises(OptilockError, match="cannot be committed"), UnitOfWork(sessions) as session:
        session.execute(update(Account).where(Account.id == 2).values(balance=21))
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT * FROM there_is_no_such_table"))

    assert stored(sessions) == [10, 20]


def test_the_half_after_a_swallowed_conflict_is_not_committed(sessions, engine):
    """MariaDB rolls everything back, and takes what follows for a new transaction."""
    needs(engine, "two writers at a time", row_locks(engine))
    by_hand = update(Account).where(Account.id == 1).values(balance=11)
    with pytest.raises(OptilockError, match="cannot be committed"), repeatable_read(sessions) as s:
        s.get_one(Account, 1)
        set_balance(sessions, 1, 99)
        with pytest.raises(DBAPIError):
            s.execute(by_hand)
        if engine.dialect.name == "mysql":
            s.execute(update(Account).where(Account.id == 2).values(balance=21))

    assert stored(sessions) == [99, 20]


# -- COMMIT ----------------------------------------------------------------------------------------


def kill(engine: Engine, victim: Connection) -> None:
    """Let the server close the connection of ``victim``."""
    if engine.dialect.name == "postgresql":
        ask, order = "SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"
    else:
        ask, order = "SELECT connection_id()", "KILL {}"
    number = victim.exec_driver_sql(ask).scalar_one()
    with engine.connect() as other:
        other.exec_driver_sql(order.format(number))


def kill_at_commit(sessions: sessionmaker[Session], engine: Engine) -> None:
    """The server goes away when everything is flushed and COMMIT is sent next."""

    @event.listens_for(sessions, "before_commit", once=True)
    def before_commit(session: Session) -> None:
        kill(engine, session.connection())


def test_a_connection_lost_inside_commit_is_told_and_not_retried(sessions, engine):
    needs(engine, "server that could go away", row_locks(engine))
    watched = sessionmaker(engine)
    runs = []

    @unit_of_work(watched, attempts=5)
    def rename(session: Session) -> None:
        runs.append(session)
        session.get_one(Account, 1).balance = 11
        if len(runs) == 1:
            kill_at_commit(watched, engine)

    with pytest.raises(CommitOutcomeUnknown) as caught:
        rename()
    assert len(runs) == 1
    assert isinstance(caught.value.__cause__, DBAPIError)


def test_a_connection_lost_at_the_end_of_a_read_only_unit_leaves_nothing_unknown(sessions, engine):
    needs(engine, "server that could go away", row_locks(engine))
    watched = sessionmaker(engine)
    kill_at_commit(watched, engine)
    with pytest.raises(DBAPIError), UnitOfWork(watched, read_only=True) as session:
        session.get_one(Account, 1)


def test_a_connection_lost_before_commit_is_retried(sessions, engine):
    needs(engine, "server that could go away", row_locks(engine))
    runs = []

    @unit_of_work(sessions, attempts=5)
    def rename(session: Session) -> None:
        runs.append(session)
        session.get_one(Account, 1).balance = 11
        if len(runs) == 1:
            kill(engine, session.connection())

    rename()
    assert len(runs) == 2
    assert stored(sessions) == [11, 20]


def test_a_unit_whose_commit_was_refused_leaves_nothing_behind(sessions, engine):
    """SQLite's transaction goes on after SQLITE_BUSY; the pool's next user would store it."""
    needs(engine, "readers that block a COMMIT", journal(engine))
    blocker = engine.connect()
    with pytest.raises(DBAPIError), UnitOfWork(sessions) as session:
        session.connection().exec_driver_sql("PRAGMA busy_timeout = 0")
        session.get_one(Account, 1).balance = 11
        session.flush()
        blocker.exec_driver_sql("BEGIN")
        blocker.exec_driver_sql("SELECT balance FROM unit_accounts").all()
    blocker.rollback()
    blocker.close()

    with UnitOfWork(sessions) as session:
        session.get_one(Account, 2).balance = 21
    assert stored(sessions) == [10, 21]


# -- async -----------------------------------------------------------------------------------------

AsyncTest = Callable[[async_sessionmaker[AsyncSession]], Any]


def in_loop(engine: AsyncEngine, test: AsyncTest) -> None:
    """Run ``test`` with two accounts, in a loop of its own."""

    async def run() -> None:
        made = async_sessionmaker(engine)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
            await connection.run_sync(Base.metadata.create_all)
        async with made.begin() as session:
            session.add_all(two_accounts())
        try:
            await test(made)
        finally:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.drop_all)
            await engine.dispose()

    asyncio.run(run())


async def stored_async(sessions: async_sessionmaker[AsyncSession]) -> list[int]:
    async with sessions.begin() as session:
        return list(await session.scalars(select(Account.balance).order_by(Account.id)))


async def set_balance_async(sessions: Any, account_id: int, balance: int) -> None:
    async with sessions.begin() as session:
        (await session.get_one(Account, account_id)).balance = balance


def test_an_async_unit_commits_and_rolls_back(async_engine):
    async def test(sessions):
        async with AsyncUnitOfWork(sessions) as session:
            (await session.get_one(Account, 1)).balance = 11
        with pytest.raises(KeyError):
            async with AsyncUnitOfWork(sessions) as session:
                (await session.get_one(Account, 2)).balance = 21
                await session.flush()
                raise KeyError
        assert await stored_async(sessions) == [11, 20]

    in_loop(async_engine, test)


def test_an_inner_async_unit_joins_and_a_savepoint_undoes_only_itself(async_engine):
    async def test(sessions):
        async with AsyncUnitOfWork(sessions) as session:
            async with AsyncUnitOfWork(sessions) as inner:
                assert inner is session
                (await inner.get_one(Account, 1)).balance = 11
            with pytest.raises(KeyError):
                async with AsyncUnitOfWork(sessions, propagation="savepoint") as inner:
                    (await inner.get_one(Account, 2)).balance = 21
                    raise KeyError
        assert await stored_async(sessions) == [11, 20]

    in_loop(async_engine, test)


def test_a_child_task_starts_its_own_unit(async_engine):
    async def test(sessions):
        async def child() -> AsyncSession:
            async with AsyncUnitOfWork(sessions) as session:
                return session

        async with AsyncUnitOfWork(sessions) as outer:
            assert await asyncio.create_task(child()) is not outer

    in_loop(async_engine, test)


def test_an_async_function_runs_again_with_fresh_reads(async_engine):
    async def test(sessions):
        runs = []

        @unit_of_work(sessions)
        async def deposit(session: AsyncSession, amount: int) -> None:
            runs.append(session)
            account = await session.get_one(Account, 1)
            if len(runs) == 1:
                await set_balance_async(sessions, 1, 50)
            account.balance += amount

        await deposit(5)
        assert len(set(runs)) == 2
        assert await stored_async(sessions) == [55, 20]

    in_loop(async_engine, test)


def test_an_async_resolver_settles_a_conflict(async_engine):
    async def mine(entry):
        await turn()
        return client_wins(entry)

    async def test(sessions):
        async with AsyncUnitOfWork(sessions, on_conflict=mine) as session:
            account = await session.get_one(Account, 1)
            await set_balance_async(sessions, 1, 99)
            account.balance = 11
        assert await stored_async(sessions) == [11, 20]

    in_loop(async_engine, test)


def test_a_task_that_is_cancelled_in_its_body_rolls_back(async_engine):
    async def test(sessions):
        async def work() -> None:
            async with AsyncUnitOfWork(sessions) as session:
                (await session.get_one(Account, 1)).balance = 11
                await session.flush()
                asyncio.current_task().cancel()
                await turn()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())
        assert await stored_async(sessions) == [10, 20]

    in_loop(async_engine, test)


def test_a_task_that_is_cancelled_inside_commit_is_cancelled_and_its_unit_is_whole(async_engine):
    async def test(sessions):
        async def work() -> None:
            me = asyncio.current_task()
            event.listen(async_engine.sync_engine, "commit", lambda _: me.cancel(), once=True)
            async with AsyncUnitOfWork(sessions) as session:
                (await session.get_one(Account, 1)).balance = 11

        with pytest.raises(asyncio.CancelledError) as caught:
            await asyncio.create_task(work())
        assert "the unit of work was committed" in caught.value.__notes__[0]
        assert await stored_async(sessions) == [11, 20]

    in_loop(async_engine, test)


def test_no_connection_of_an_async_unit_stays_out(async_engine):
    async def test(sessions):
        async with AsyncUnitOfWork(sessions) as session:
            await session.get_one(Account, 1)
        assert async_engine.pool.checkedout() == 0

    in_loop(async_engine, test)


def test_an_async_unit_that_is_stored_is_not_run_again(async_engine):
    """It is left in a task of its own, which has to tell the attempt of the program's."""

    async def test(sessions):
        class Told(Session):
            pass

        @event.listens_for(Told, "after_commit", once=True)
        def tell(session: Session) -> None:
            raise StaleDataError("of another unit")

        attempts = []

        @unit_of_work(async_sessionmaker(async_engine, sync_session_class=Told))
        async def add(session: AsyncSession) -> None:
            attempts.append(session)
            (await session.get_one(Account, 1)).balance += 1

        async with sessions() as session:
            before = (await session.get_one(Account, 1)).balance
        with pytest.raises(StaleDataError) as raised:
            await add()
        async with sessions() as session:
            after = (await session.get_one(Account, 1)).balance
        assert (len(attempts), after - before) == (1, 1)
        assert [note for note in raised.value.__notes__ if "the unit is stored" in note]

    in_loop(async_engine, test)


@pytest.mark.parametrize("way", ["decorated", "loop"])
def test_a_unit_that_is_stored_is_not_run_again_because_a_listener_has_failed(sessions, way):
    """The error of ``after_commit`` counts as transient: another attempt would add once more."""

    @event.listens_for(sessions, "after_commit")
    def tell(session: Session) -> None:
        event.remove(sessions, "after_commit", tell)
        raise StaleDataError("of another unit")

    def add(session: Session) -> None:
        attempts.append(session)
        session.get_one(Account, 1).balance += 1

    def in_a_loop() -> None:
        for attempt in retrying():
            with attempt, UnitOfWork(sessions) as session:
                add(session)

    attempts: list[Session] = []
    run = unit_of_work(sessions)(add) if way == "decorated" else in_a_loop
    with pytest.raises(StaleDataError) as raised:
        run()
    assert stored(sessions) == [11, 20]
    assert len(attempts) == 1
    assert [note for note in raised.value.__notes__ if "the unit is stored" in note]


@pytest.mark.parametrize("nested", ["savepoint=True", "begin_nested"])
def test_a_savepoint_is_the_border_of_what_a_joined_unit_dooms(sessions, engine, nested):
    """Once it is rolled back, nothing is left of the failed work."""

    def savepoint(session):
        return (
            session.begin_nested()
            if nested == "begin_nested"
            else UnitOfWork(sessions, propagation="savepoint")
        )

    with UnitOfWork(sessions) as session:
        session.add(Account(id=71, balance=0))
        with contextlib.suppress(KeyError), savepoint(session), UnitOfWork(sessions):
            session.add(Account(id=72, balance=0))
            raise KeyError
    with Session(engine) as reader:
        assert (reader.get(Account, 71) is None, reader.get(Account, 72)) == (False, None)


def test_an_error_that_is_caught_inside_of_the_savepoint_refuses_that_alone(sessions, engine):
    with UnitOfWork(sessions) as session:
        session.add(Account(id=73, balance=0))
        refused = pytest.raises(OptilockError, match="had joined it failed")
        with refused, UnitOfWork(sessions, propagation="savepoint"):
            session.add(Account(id=74, balance=0))
            with contextlib.suppress(KeyError), UnitOfWork(sessions):
                raise KeyError
    with Session(engine) as reader:
        assert (reader.get(Account, 73) is None, reader.get(Account, 74)) == (False, None)


def test_the_session_of_a_unit_that_has_ended_refuses(sessions):
    """A background task, a stream, a thread."""
    with UnitOfWork(sessions) as session:
        session.add(Account(id=75, balance=0))
    for act in (
        lambda: session.get(Account, 75),
        lambda: session.add(Account(id=76, balance=0)),
        lambda: session.execute(select(Account)),
        session.connection,
        session.commit,
    ):
        with pytest.raises(ConfigurationError, match="Open a unit where the work goes on"):
            act()
    session.close()


@pytest.mark.engines("mariadb")
def test_an_option_that_two_phases_forbid_is_refused_when_the_unit_is_made(engine):
    """XA takes no START TRANSACTION READ ONLY."""
    sessions = sessionmaker(engine, twophase=True)
    with pytest.raises(ConfigurationError, match="read_only= does not go with"):
        UnitOfWork(sessions, read_only=True)
    with pytest.raises(ConfigurationError, match="exactly_once= does not go with"):
        unit_of_work(sessions, exactly_once=True)
