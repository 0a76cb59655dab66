"""What an attempt that failed leaves to the next one: the same transaction, or rows to lock."""

from __future__ import annotations

import pytest
from sqlalchemy import event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from optilock import (
    ConcurrencyError,
    Isolation,
    UnitOfWork,
    events,
    is_transient,
    lock,
    retrying,
    touch,
    unit_of_work,
    verify,
)
from optilock.unit import Part
from optilock.unit.heat import MEMORY
from tests.support.models import Account, Base, Note, Tag


@pytest.fixture
def newest(database):
    """The same database, where each statement sees what is stored by then."""
    options = {} if database.family == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = database.engine(**options)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(newest, store):
    store(Account(id=1, balance=10), Account(id=2, balance=20), Note(id=1), Tag(id=1))
    return sessionmaker(newest)


class Begun:
    def __init__(self, engine):
        self.count = 0
        event.listen(engine, "begin", self._begin)

    def _begin(self, connection):
        self.count += 1


@pytest.fixture
def transactions(newest):
    return Begun(newest)


@pytest.fixture
def retries():
    found = []

    def listener(heard):
        if isinstance(heard, events.Retry):
            found.append(heard)

    events.listen(listener, written=False)
    yield found
    events.unlisten(listener)


@pytest.fixture
def meets(sessions, other, transactions):
    """Run ``work`` as a unit whose first attempt meets a conflict on account 1."""

    def meets(work, *, before=False, strategy="adaptive", **options):
        attempts = []

        def body(session):
            account = session.get_one(Account, 1)
            attempts.append(account)
            if len(attempts) == 1 and before:
                other(Account, 1, balance=100)
            result = work(session)
            if len(attempts) == 1 and not before:
                other(Account, 1, balance=100)
            account.balance += 1
            return result

        begun = transactions.count
        unit_of_work(sessions, strategy=strategy, **options)(body)()
        return transactions.count - begun, len(attempts)

    return meets


def nothing(session):
    pass


ONE, TWO = (1, 2), (2, 2)


@pytest.mark.parametrize("strategy", ["adaptive", "pessimistic"])
def test_a_function_that_wrote_nothing_runs_again_in_its_transaction(
    sessions, other, stored, transactions, retries, strategy
):
    seen = []

    @unit_of_work(sessions, strategy=strategy)
    def work(session):
        if strategy == "adaptive":
            account = session.get_one(Account, 1)
        else:
            (account,) = session.scalars(select(Account).where(Account.id == 1).distinct())
        seen.append((session, account.balance))
        if len(seen) == 1:
            other(Account, 1, balance=100)
        account.balance += 1
        return account.balance

    assert work() == 101
    assert transactions.count == 1
    assert [balance for _, balance in seen] == [10, 100]
    assert seen[0][0] is not seen[1][0]
    assert stored(Account, 1)["balance"] == 101
    assert [(one.attempt, one.wait) for one in retries] == [(1, 0.0)]


@pytest.mark.engines("postgresql")
def test_a_pipelined_unit_locks_in_another_transaction(
    sessions, newest, other, stored, transactions
):
    seen, skipped = [], []

    @unit_of_work(sessions, strategy="adaptive", pipelined=True)
    def work(session):
        account = session.get_one(Account, 1)
        seen.append(account.balance)
        if len(seen) == 1:
            other(Account, 1, balance=100)
        else:
            with UnitOfWork(sessions, propagation="independent") as waiting:
                skipped.append(not lock(waiting.get_one(Account, 1), skip_locked=True))
        account.balance += 1

    work()
    assert (seen, skipped) == ([10, 100], [True])
    assert transactions.count == 3  # one is of the unit that did not wait
    assert stored(Account, 1)["balance"] == 101


def test_an_optimistic_unit_begins_another_transaction(meets):
    assert meets(nothing, strategy="optimistic", retry=retrying(wait_initial=0)) == TWO


def test_who_has_sent_very_many_queries_begins_another_transaction(meets):
    """Nobody remembers them all."""

    def work(session):
        for _ in range(120):
            session.scalar(select(Account.id).where(Account.id == 2))

    assert meets(work) == TWO


READS = {
    "another row": lambda s: s.get_one(Account, 2),
    "a query": lambda s: s.scalars(select(Account)).all(),
    "a number": lambda s: s.scalar(select(func.count(Account.id))),
    "a savepoint": lambda s: s.begin_nested().commit(),
}


@pytest.mark.parametrize("way", ["another row", "a query", "a number"])
def test_who_has_only_read_besides_goes_on(meets, way):
    assert meets(READS[way]) == ONE


def add_note(session):
    session.add(Note(id=2, text="new"))


def write_another(session):
    session.get_one(Account, 2).balance += 1


def write_and_flush(session):
    write_another(session)
    session.flush()


def delete_another(session):
    session.delete(session.get_one(Note, 1))


def write_unversioned(session):
    session.get_one(Tag, 1).name = "x"


def write_in_a_savepoint(session):
    with session.begin_nested():
        write_another(session)


def insert_statement(session):
    session.execute(insert(Note).values(id=2, text="new"))


def update_statement(session):
    session.execute(update(Account).where(Account.id == 2).values(balance=Account.balance + 1))


def on_the_connection(session):
    session.connection().execute(insert(Tag.__table__).values(id=2))


def in_bulk(session):
    session.bulk_insert_mappings(Tag, [{"id": 2}])


def as_text(session):
    session.execute(text("UPDATE tags SET name = 'x'"))


def through_the_transaction(session):
    lock(session.get_one(Account, 2))


def touched(session):
    touch(session.get_one(Account, 2))


WRITES = [
    add_note,
    write_another,
    write_and_flush,
    delete_another,
    write_unversioned,
    write_in_a_savepoint,
    insert_statement,
    update_statement,
    on_the_connection,
    in_bulk,
    as_text,
    through_the_transaction,
    touched,
]


@pytest.mark.parametrize("work", WRITES)
def test_who_has_written_more_begins_another_transaction(meets, stored, work):
    # Whose statement has moved the row is asked in a transaction of its own.
    asked = work is update_statement
    assert meets(work, before=True) == (2 + asked, 2)
    assert stored(Account, 1)["balance"] == 101
    assert stored(Account, 2)["balance"] in (20, 21)  # once


def test_what_a_listener_has_written_is_not_written_twice(meets, sessions, stored, newest):
    def audit(mapper, connection, target):
        connection.execute(update(Tag.__table__).values(name=func.coalesce(Tag.name, "") + "x"))

    event.listen(Account, "before_update", audit)
    try:
        assert meets(nothing) == TWO
    finally:
        event.remove(Account, "before_update", audit)
    assert stored(Tag, 1)["name"] == "xx"  # once for the other program


def test_a_transaction_that_reads_a_snapshot_is_not_gone_on_with(meets, database):
    found = meets(nothing, isolation=Isolation.REPEATABLE_READ)
    assert found[1] == 2
    assert found[0] >= 2


@pytest.mark.needs("row-locks")
def test_mariadb_reads_a_snapshot_unless_it_is_told_otherwise(engine, store, other):
    store(Account(id=1, balance=10))
    begun, attempts = Begun(engine), []

    @unit_of_work(sessionmaker(engine), strategy="adaptive")
    def work(session):
        account = session.get_one(Account, 1)
        attempts.append(account.balance)
        if len(attempts) == 1:
            other(Account, 1, balance=100)
        account.balance += 1

    work()
    if engine.dialect.name == "mysql":
        assert (attempts, begun.count) == ([10, 100], 3)  # one is the other program's


class Audit(Part):
    """Writes a row when it begins."""

    def connected(self, session, connection):
        connection.execute(update(Tag.__table__).values(name=func.coalesce(Tag.name, "") + "x"))


def test_what_a_part_writes_when_the_transaction_begins_is_written_once(meets, stored):
    assert meets(nothing, before=True, parts=[Audit()]) == TWO
    assert stored(Tag, 1)["name"] == "x"


def test_what_a_listener_writes_when_the_transaction_begins_is_written_once(
    meets, sessions, stored
):
    def begun(session, transaction, connection):
        Audit().connected(session, connection)

    event.listen(sessions, "after_begin", begun)
    assert meets(nothing, before=True) == TWO
    assert stored(Tag, 1)["name"] == "x"


def test_an_inner_unit_that_has_failed_is_not_gone_on_with(sessions, other, transactions):
    seen = []

    @unit_of_work(sessions, strategy="adaptive")
    def outer(session):
        with UnitOfWork(sessions) as inner:
            account = inner.get_one(Account, 1)
            seen.append(account)
            if len(seen) == 1:
                other(Account, 1, balance=100)
            account.balance += 1
            inner.flush()

    outer()
    assert (len(seen), transactions.count) == (2, 2)


# -- nothing of the first attempt is left ----------------------------------------------------------


def test_listeners_notes_and_promises_of_the_first_attempt_are_gone(meets, newest):
    told, notes = [], []

    def work(session):
        event.listen(session, "after_commit", told.append)
        notes.append(dict(session.info))
        session.info["seen"] = True
        verify(session.get_one(Account, 2))

    assert meets(work)[1] == 2
    assert len(told) == 1
    assert notes == [{}, {}]
    assert newest.pool.checkedout() == 0


def test_the_transaction_is_rolled_back_if_no_attempt_follows(meets, newest, sessions, stored):
    for options in (
        {"attempts": 1},
        {"retry": retrying(on=KeyError)},
        {"retry": retrying(deadline=0)},
    ):
        with sessions.begin() as session:
            session.get_one(Account, 1).balance = 10
        MEMORY.forget()
        with pytest.raises(ConcurrencyError):
            meets(nothing, **options)
        assert newest.pool.checkedout() == 0
        with UnitOfWork(sessions) as session:
            assert lock(session.get_one(Account, 1), skip_locked=True)
    assert stored(Account, 1)["balance"] == 100


def test_an_error_of_the_second_attempt_rolls_back(sessions, other, stored, newest):
    seen = []

    @unit_of_work(sessions, strategy="adaptive")
    def work(session):
        account = session.get_one(Account, 1)
        seen.append(account)
        if len(seen) == 2:
            raise KeyboardInterrupt
        other(Account, 1, balance=100)
        account.balance += 1

    with pytest.raises(KeyboardInterrupt):
        work()
    assert newest.pool.checkedout() == 0
    assert stored(Account, 1)["balance"] == 100


class Impatient(Part):
    """How long its sessions wait for a lock."""

    SAID = {
        "sqlite": "PRAGMA busy_timeout = 50",
        "postgresql": "SET LOCAL lock_timeout = '50ms'",
        "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    }

    def connected(self, session, connection):
        connection.exec_driver_sql(self.SAID[connection.dialect.name])


@pytest.mark.full
def test_a_row_that_somebody_holds_for_ever_ends_in_the_last_error(sessions, watched):
    tried = []

    @unit_of_work(
        sessions,
        strategy="pessimistic",
        retry=retrying(attempts=1000, deadline=4),
        parts=[Impatient()],
    )
    def work(session):
        tried.append(session)
        session.get_one(Account, 1).balance += 1

    lock(watched().get_one(Account, 1))
    with pytest.raises(DBAPIError) as caught:
        work()
    assert len(tried) > 1
    assert is_transient(caught.value)
    assert f"{len(tried)} attempts" in caught.value.__notes__[-1]


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_async_functions_go_on_in_their_transaction(async_database, async_engine):
    options = {} if async_database.family == "sqlite" else {"isolation_level": "READ COMMITTED"}
    newest = async_engine.execution_options(**options)
    async with newest.begin() as connection:
        await connection.run_sync(Base.metadata.create_all, tables=[Account.__table__])
    sessions = async_sessionmaker(newest, expire_on_commit=False)
    async with sessions.begin() as session:
        session.add(Account(id=1, balance=10))
    begun, seen = Begun(newest.sync_engine), []

    async def work(session):
        account = await session.get_one(Account, 1)
        seen.append(account.balance)
        if account.balance == 10:
            async with async_sessionmaker(async_engine).begin() as other:
                (await other.get_one(Account, 1)).balance = 100
        account.balance += 1

    await unit_of_work(sessions, strategy="adaptive")(work)()
    assert seen == [10, 100]
    before = begun.count
    async with sessions.begin() as session:
        (await session.get_one(Account, 1)).balance = 10
    MEMORY.forget()
    with pytest.raises(ConcurrencyError):
        await unit_of_work(sessions, strategy="adaptive", attempts=1)(work)()
    in_use = getattr(newest.sync_engine.pool, "checkedout", None)  # old releases keep none
    assert in_use is None or in_use() == 0
    assert begun.count > before
