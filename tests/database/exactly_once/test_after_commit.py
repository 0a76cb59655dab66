"""Functions that are called once a unit is stored."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock import AsyncUnitOfWork, ConfigurationError, UnitOfWork, retrying, unit_of_work
from optilock.errors import CommitOutcomeUnknown
from optilock.exactly_once import AlreadyDone, NotCommitted, after_commit, questions, set_result
from tests.support.models import Account
from tests.support.waiting import turn

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def increase(session: Session) -> int:
    account = session.get_one(Account, 1)
    account.balance += 1
    return account.balance


def test_they_are_called_in_order_after_commit_with_the_connection_given_back(
    counter, database, balance
):
    engine, heard = database.engine(pool_size=1, max_overflow=0, pool_timeout=1), []

    def look(name: str) -> None:
        heard.append((name, balance()))
        with UnitOfWork(engine) as session:  # a unit of its own, on the pool's only connection
            increase(session)

    with UnitOfWork(engine) as session:
        increase(session)
        after_commit(session, look, "first")
        after_commit(session, look, "second")
        assert heard == []
    assert heard == [("first", 1), ("second", 2)]
    engine.dispose()


def test_only_those_of_the_attempt_that_is_stored_are_called(counter, other):
    heard, tries = [], []

    @unit_of_work(counter, retry=retrying(wait_initial=0))
    def pay(session: Session) -> None:
        increase(session)
        tries.append(1)
        after_commit(session, heard.append, len(tries))
        if len(tries) == 1:
            other(Account, 1, balance=5)

    pay()
    assert (heard, len(tries)) == ([2], 2)


def test_those_of_a_unit_that_is_rolled_back_are_not_called(counter):
    heard = []
    with pytest.raises(ValueError, match="no"), UnitOfWork(counter) as session:
        after_commit(session, heard.append, 1)
        raise ValueError("no")
    assert heard == []


def test_those_of_a_savepoint_go_with_it(counter):
    heard, sessions = [], sessionmaker(counter)
    with UnitOfWork(sessions) as session:
        increase(session)
        with pytest.raises(ValueError, match="no"), session.begin_nested():
            after_commit(session, heard.append, "undone")
            with session.begin_nested():
                after_commit(session, heard.append, "released inside of one that is undone")
            raise ValueError("no")
        with session.begin_nested():
            after_commit(session, heard.append, "released")
        with (
            pytest.raises(ValueError, match="no"),
            UnitOfWork(sessions, propagation="savepoint") as inner,
        ):
            after_commit(inner, heard.append, "undone, too")
            raise ValueError("no")
        with UnitOfWork(sessions) as joined:
            after_commit(joined, heard.append, "joined")
        assert heard == []
    assert heard == ["released", "joined"]


def test_one_that_fails_is_logged_and_the_others_are_called(counter, balance, caplog):
    heard = []

    def fail() -> None:
        raise ValueError("of the hook")

    with caplog.at_level(logging.ERROR, "optilock"), UnitOfWork(counter) as session:
        increase(session)
        after_commit(session, fail)
        after_commit(session, heard.append, 1)
    [record] = caplog.records
    assert "of the hook" in str(record.exc_info)
    assert (heard, balance()) == ([1], 1)


def test_they_run_outside_of_a_unit_around_an_independent_one(counter, balance):
    sessions, heard = sessionmaker(counter), []

    def look() -> None:
        with UnitOfWork(sessions) as session:
            heard.append(increase(session))

    with pytest.raises(ValueError, match="outer"), UnitOfWork(sessions):
        with UnitOfWork(sessions, propagation="independent") as inner:
            after_commit(inner, look)
        raise ValueError("outer")
    assert (heard, balance()) == ([1], 1)


def test_they_are_called_where_a_listener_fails_after_commit(counter, balance):
    heard, sessions = [], sessionmaker(counter)
    from sqlalchemy import event

    @event.listens_for(sessions, "after_commit")
    def fail(session: Session) -> None:
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"), UnitOfWork(sessions) as session:
        increase(session)
        after_commit(session, heard.append, 1)
    assert (heard, balance()) == ([1], 1)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("way", ["before", "after"])
def test_after_a_lost_commit_they_are_called_if_the_unit_is_stored(cut_at, way):
    heard = []

    @unit_of_work(cut_at(way), exactly_once=True, attempts=1)
    def pay(session: Session) -> None:
        increase(session)
        after_commit(session, heard.append, 1)

    if way == "before":
        with pytest.raises(NotCommitted):
            pay()
    else:
        pay()
    assert heard == ([1] if way == "after" else [])


@pytest.mark.engines("postgresql")
def test_after_an_unknown_outcome_they_are_not_called(cut_at, monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE", 0.1)
    heard = []
    with pytest.raises(CommitOutcomeUnknown), UnitOfWork(cut_at("after"), exactly_once=True) as s:
        increase(s)
        after_commit(s, heard.append, 1)
        s.flush()
        cut_at.line.refuses = True
    assert heard == []


def test_a_scoped_session_is_that_of_its_unit(counter):
    sessions, heard = scoped_session(sessionmaker(counter)), []
    with UnitOfWork(sessions):
        after_commit(sessions, heard.append, 1)
        increase(sessions)
    assert heard == [1]


def test_where_there_is_no_unit_they_are_refused(counter):
    with Session(counter) as session, pytest.raises(ConfigurationError, match="no unit of work"):
        after_commit(session, print)
    with pytest.raises(ConfigurationError, match="no unit of work"):
        after_commit(None, print)
    with UnitOfWork(counter) as session:

        async def later() -> None: ...

        for function in (None, "print"):
            with pytest.raises(ConfigurationError, match="takes a function"):
                after_commit(session, function)
        with pytest.raises(ConfigurationError, match="async"):
            after_commit(session, later)


@pytest.mark.anyio
async def test_async_functions_are_awaited_inside_the_shield(tmp_path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db")
    heard, begun, goes_on = [], asyncio.Event(), asyncio.Event()
    async with engine.begin() as connection:
        await connection.run_sync(Account.__table__.create)

    async def mail(text: str) -> None:
        begun.set()
        await goes_on.wait()
        async with AsyncUnitOfWork(engine) as session:
            heard.append((text, await session.scalar(select(Account.id))))

    async def work() -> None:
        async with AsyncUnitOfWork(engine) as session:
            assert isinstance(session, AsyncSession)
            session.add(Account(id=1))
            after_commit(session, mail, "first")
            after_commit(session, heard.append, "second")

    task = asyncio.ensure_future(work())
    await begun.wait()
    task.cancel()
    await turn()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert heard == [("first", 1), "second"]
    assert any("was committed" in note for note in cancelled.value.__notes__)
    await engine.dispose()


@pytest.mark.anyio
async def test_one_that_ends_cancelled_is_logged_and_the_others_are_called(tmp_path, caplog):
    engine, heard = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db"), []

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async with AsyncUnitOfWork(engine) as session:
        await session.execute(select(1))
        after_commit(session, cancelled)
        after_commit(session, heard.append, 1)
    assert (heard, len(caplog.records)) == ([1], 1)
    await engine.dispose()


# -- the result of a block -------------------------------------------------------------------------


def test_a_block_sets_its_result(counter, balance):
    sessions = sessionmaker(counter)
    with UnitOfWork(sessions, exactly_once="k") as session:
        increase(session)
        set_result(session, {"order": 7})
    with pytest.raises(AlreadyDone) as done, UnitOfWork(sessions, exactly_once="k"):
        pass
    assert done.value.result == {"order": 7}
    with UnitOfWork(sessions) as outer:
        with UnitOfWork(sessions, exactly_once="inner") as inner:
            set_result(inner, [1])
        with pytest.raises(ConfigurationError, match="without a key"):
            set_result(outer, [1])
    with pytest.raises(AlreadyDone) as done, UnitOfWork(sessions, exactly_once="inner"):
        pass
    assert done.value.result == [1]
    with (
        pytest.raises(ConfigurationError, match="JSON"),
        UnitOfWork(sessions, exactly_once="other") as session,
    ):
        set_result(session, (1,))
    with pytest.raises(ConfigurationError, match="no unit of work"):
        set_result(create_engine("sqlite://"), 1)
