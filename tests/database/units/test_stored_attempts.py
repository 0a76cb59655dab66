"""An attempt that has stored something is not run again, unless that may be stored again.

In each story an attempt stores a deposit of 1 on account 1, apart from the transaction that then
conflicts on account 2. So account 1 has 11 afterwards, however the deposit was made.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from sqlalchemy import Engine, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    UnitOfWork,
    bulk_update,
    entities,
    retry,
    retrying,
    unit_of_work,
    watch,
)
from optilock.exactly_once import AlreadyDone
from optilock.tables.names import commit_tokens
from tests.support.models import Account, Note
from tests.support.queues import made

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

Deposit = Callable[[Engine], None]


def add(session: Session) -> None:
    session.get_one(Account, 1).balance += 1


def in_a_unit(engine: Engine) -> None:
    with UnitOfWork(engine, name="pay") as session:
        add(session)


def in_a_decorated_unit(engine: Engine) -> None:
    unit_of_work(engine)(add)()


def in_a_session(engine: Engine) -> None:
    with watch(sessionmaker(engine)).begin() as session:
        add(session)


def in_a_unit_that_was_joined(engine: Engine) -> None:
    with UnitOfWork(engine):
        in_a_unit(engine)


def in_an_independent_unit(engine: Engine) -> None:
    """Inside of another one, which has read before."""
    with UnitOfWork(engine, read_only=True) as session:
        session.get_one(Account, 2)
        with UnitOfWork(engine, propagation="independent") as inner:
            add(inner)


def in_a_thread(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, in_a_unit, engine).result()


def in_an_inner_retry(engine: Engine) -> None:
    retry(in_a_unit)(engine)


def by_a_statement(engine: Engine) -> None:
    with UnitOfWork(engine) as session:
        session.execute(update(Account).where(Account.id == 1).values(balance=11))


def by_a_text(engine: Engine) -> None:
    with watch(sessionmaker(engine)).begin() as session:
        session.connection().exec_driver_sql("UPDATE accounts SET balance = 11 WHERE id = 1")


def by_a_text_of_the_session(engine: Engine) -> None:
    with watch(sessionmaker(engine)).begin() as session:
        session.execute(text("UPDATE accounts SET balance = 11 WHERE id = 1"))


def by_keys(engine: Engine) -> None:
    with watch(sessionmaker(engine)).begin() as session:
        bulk_update(session, Account, [{"id": 1, "version": 1, "balance": 11}])


def by_an_operation(engine: Engine) -> None:
    with UnitOfWork(engine) as session:
        entities.merge(session, Account, 1, {"balance": 11}, if_match="*")


WAYS: list[Deposit] = [
    in_a_unit,
    in_a_decorated_unit,
    in_a_session,
    in_a_unit_that_was_joined,
    in_an_independent_unit,
    in_a_thread,
    in_an_inner_retry,
    by_a_statement,
    by_a_text,
    by_a_text_of_the_session,
    by_keys,
    by_an_operation,
]


class Work:
    """Deposits, and then a unit that conflicts in its first run."""

    def __init__(self, engine: Engine, other: Any, deposit: Deposit) -> None:
        self.engine, self.other, self.deposit = engine, other, deposit
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        self.deposit(self.engine)
        with UnitOfWork(self.engine, strategy="optimistic") as session:
            account = session.get_one(Account, 2)
            if self.runs == 1:
                self.other(Account, 2, balance=account.balance + 5)
            account.balance += 1

    def loop(self) -> None:
        for attempt in retrying(wait_initial=0):
            with attempt:
                self()


@pytest.fixture
def work(engine, account, other):
    return lambda deposit: Work(engine, other, deposit)


@pytest.mark.parametrize("deposit", WAYS, ids=lambda way: way.__name__)
def test_stored_work_is_not_stored_again(work, stored, deposit):
    does = work(deposit)
    with pytest.raises(ConcurrencyError) as caught:
        retry(wait_initial=0)(does.__call__)()
    [note] = [note for note in caught.value.__notes__ if "had stored work" in note]
    assert "idempotent=True" in note
    assert (does.runs, stored(Account, 1)["balance"], stored(Account, 2)["balance"]) == (1, 11, 5)


def test_the_note_names_the_work(work, engine):
    with pytest.raises(ConcurrencyError, match=r"the unit 'pay' \(Account \(1,\)\)") as caught:
        work(in_a_unit).loop()
    assert "1 attempt" not in "".join(caught.value.__notes__)

    def a_new_note(engine: Engine) -> None:
        with watch(sessionmaker(engine)).begin() as session:
            session.add(Note(id=9))

    Note.metadata.create_all(engine, tables=[Note.__table__])
    with pytest.raises(ConcurrencyError, match=r"a session\. "):
        work(a_new_note).loop()


def test_work_that_is_told_to_be_idempotent_runs_again(work, engine, stored):
    does = work(in_a_unit)
    retry(idempotent=True, wait_initial=0)(does.__call__)()
    assert (does.runs, stored(Account, 1)["balance"]) == (2, 12)

    inner = work(in_a_unit)
    outer = retry(idempotent=True, wait_initial=0)(inner.__call__)
    retry(wait_initial=0)(outer)()
    with pytest.raises(ConfigurationError, match="idempotent='yes'"):
        retry(idempotent="yes")


def test_work_under_a_key_runs_again(work, engine, stored):
    commit_tokens.metadata.create_all(engine)

    def under_a_key(engine: Engine) -> None:
        try:
            with UnitOfWork(engine, exactly_once="payment-7") as session:
                add(session)
        except AlreadyDone:
            pass

    does = work(under_a_key)
    does.loop()
    assert (does.runs, stored(Account, 1)["balance"], stored(Account, 2)["balance"]) == (2, 11, 6)

    def without_a_key(engine: Engine) -> None:
        with UnitOfWork(engine, exactly_once=True) as session:
            add(session)

    with pytest.raises(ConcurrencyError, match="had stored work"):
        work(without_a_key).loop()


def test_what_was_only_read_or_is_undone_is_no_stored_work(work, stored):
    def reads(engine: Engine) -> None:
        sessions = watch(sessionmaker(engine))
        with sessions.begin() as session:
            session.get_one(Account, 1).balance = 10  # as it is
            session.execute(text("SELECT 'DELETE', balance FROM accounts AS reloaded"))
            session.connection().exec_driver_sql("SELECT 1")
        with sessions() as session:
            add(session)
            session.flush()
            session.rollback()

    does = work(reads)
    does.loop()
    assert (does.runs, stored(Account, 2)["balance"]) == (2, 6)


def test_the_other_writer_of_the_conflict_may_be_a_session_of_the_attempt(engine, account, stored):
    """As tests have it. Another session beside it is stored work."""
    sessions = watch(sessionmaker(engine))
    runs: list[int] = []

    def attempt(key: int) -> None:
        with sessions.begin() as session:
            found = session.get_one(Account, 2)
            if not runs:
                with sessions.begin() as other:
                    other.get_one(Account, key).balance += 4
                if key != 2:
                    with Session(engine) as other, other.begin():
                        other.get_one(Account, 2).balance += 4
            runs.append(key)
            found.balance += 1

    retry(
        attempt,
    )(2)
    assert (runs, stored(Account, 2)["balance"]) == ([2, 2], 5)
    runs.clear()
    with pytest.raises(ConcurrencyError, match=r"a session \(Account \(1,\)\)"):
        retry(attempt)(1)
    assert (runs, stored(Account, 1)["balance"]) == ([1], 14)


def test_a_message_is_sent_once(work, engine):
    queue = made(engine)
    with pytest.raises(ConcurrencyError, match="messages of the queue 'work'"):
        work(lambda engine: queue.send("hello")).loop()
    assert queue.count() == 1 if hasattr(queue, "count") else len(queue.receive(5)) == 1

    with_a_key = work(lambda engine: queue.send("again", dedup="7"))
    with_a_key.loop()

    def with_the_unit(engine: Engine) -> None:
        with UnitOfWork(engine) as session:
            queue.send("inside", session=session)

    with pytest.raises(ConcurrencyError, match="had stored work"):
        work(with_the_unit).loop()
    queue.close()


@pytest.mark.anyio
async def test_async_work_is_not_stored_again(async_engine: AsyncEngine, async_store: Any):
    async_store(Account(id=1, balance=10), Account(id=2, balance=10))
    sessions, runs = watch(async_sessionmaker(async_engine)), 0

    async def attempt(ours: Any) -> None:
        nonlocal runs
        runs += 1
        async with ours as session:
            (await session.get_one(Account, 1)).balance += 1
        async with AsyncUnitOfWork(sessions, strategy="optimistic") as session:
            found = await session.get_one(Account, 2)
            async with AsyncSession(async_engine) as other, other.begin():
                (await other.get_one(Account, 2)).balance += 4
            found.balance += 1

    for ours in (AsyncUnitOfWork(sessions), sessions.begin()):
        with pytest.raises(ConcurrencyError, match="had stored work"):
            await retry(attempt)(ours)
    assert runs == 2
    async with AsyncSession(async_engine) as session:
        assert (await session.get_one(Account, 1)).balance == 12
