"""An adaptive unit does without a lock that is refused, or not free in time."""

from __future__ import annotations

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, Versioned, retrying, unit_of_work
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.testing import count_statements
from optilock.unit import Adaptive
from optilock.unit.heat import MEMORY, Key
from optilock.unit.sessions import name_of
from tests.support.models import Account

WORDS = ("FOR UPDATE", "FOR NO KEY UPDATE", "WHERE 0 = 1")


@pytest.fixture
def stored_rows(store):
    store(Account(id=1, balance=10), Account(id=2, balance=20))


def heat(engine, identity=(1,), table="accounts"):
    key = Key(name_of(engine), table, identity)
    MEMORY.conflict(key, Adaptive(), "the test says so")
    MEMORY.rows[key].left = 1_000_000


def locking(sent):
    return [one.text for one in sent.statements if any(word in one.text for word in WORDS)]


def balance(session):
    return session.get_one(Account, 1).balance


def by_query(session):
    return session.scalars(select(Account).where(Account.id == 1)).one().balance


# -- the lock is refused ---------------------------------------------------------------------------


@pytest.fixture
def may_read(engine, database, stored_rows):
    """An engine of a role that may read, and not write."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS optilock_looks")
        connection.exec_driver_sql("CREATE ROLE optilock_looks")
        schema = connection.scalar(text("SELECT current_schema()"))
        connection.exec_driver_sql(f'GRANT USAGE ON SCHEMA "{schema}" TO optilock_looks')
        connection.exec_driver_sql("GRANT SELECT ON accounts TO optilock_looks")
    made = database.engine()

    @event.listens_for(made, "connect")
    def connect(connection, record):
        connection.cursor().execute("SET ROLE optilock_looks")
        connection.commit()

    yield made
    made.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY optilock_looks")
        connection.exec_driver_sql("DROP ROLE optilock_looks")


READS_ONLY = {
    "postgresql": "SET default_transaction_read_only = on",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = 1",
}


@pytest.fixture
def reads_only(database, stored_rows):
    """An engine whose transactions only read."""
    made = database.engine()
    statement = READS_ONLY[database.family]

    @event.listens_for(made, "connect")
    def connect(connection, record):
        connection.cursor().execute(statement)
        connection.commit()

    yield made
    made.dispose()


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(("read", "identity"), [(balance, (1,)), (by_query, None)])
@pytest.mark.parametrize("options", [{}, {"retry": retrying(on=ConcurrencyError)}], ids=["", "on="])
def test_who_may_not_write_the_table_reads_it_without_a_lock(
    may_read, retried, read, identity, options
):
    heat(may_read, identity)
    work = unit_of_work(sessionmaker(may_read), **options)(read)
    assert work() == 10
    (error,) = retried
    assert "FOR NO KEY UPDATE" in error.statement
    assert "the unit's strategy had added the lock" in error.__notes__[0]
    with count_statements(may_read) as sent:
        assert work() == 10
    assert sent.count == 1
    assert len(retried) == 1


def test_so_does_who_is_in_a_transaction_that_only_reads(reads_only, retried):
    heat(reads_only)
    work = unit_of_work(sessionmaker(reads_only))(balance)
    for _ in range(2):
        assert work() == 10
        assert len(retried) == (0 if reads_only.dialect.name == "sqlite" else 1)


@pytest.mark.engines("postgresql")
def test_so_it_does_where_the_unit_says_so_itself(engine, stored_rows, retried):
    heat(engine)

    @unit_of_work(sessionmaker(engine))
    def work(session):
        session.execute(text("SET TRANSACTION READ ONLY"))
        return balance(session)

    assert [work(), work()] == [10, 10]
    assert len(retried) == 1


def test_so_does_a_block_in_a_loop_of_attempts(reads_only):
    heat(reads_only)
    found = []
    for _ in range(2):
        for attempt in retrying():
            with attempt, UnitOfWork(sessionmaker(reads_only)) as session:
                found.append(balance(session))
    assert found == [10, 10]


@pytest.mark.engines("postgresql")
def test_who_runs_once_hears_what_to_do(may_read):
    heat(may_read)
    work = unit_of_work(sessionmaker(may_read), attempts=1, name="once")(balance)
    with pytest.raises(DBAPIError) as caught:
        work()
    assert any('strategy="optimistic"' in note for note in caught.value.__notes__)


@pytest.mark.engines("postgresql")
def test_a_pessimistic_unit_does_not_do_without(may_read):
    with (
        pytest.raises(DBAPIError, match="permission denied"),
        UnitOfWork(may_read, strategy="pessimistic") as session,
    ):
        balance(session)


@pytest.mark.engines("postgresql")
def test_a_writer_of_that_name_locks_again(engine, may_read, retried):
    heat(engine)

    def work(session, *, writes=False):
        row = session.get_one(Account, 1)
        row.balance += writes
        return row.balance

    assert unit_of_work(sessionmaker(may_read))(work)() == 10
    writing = unit_of_work(sessionmaker(engine))(work)
    writing(writes=True)
    with count_statements(engine) as sent:
        writing(writes=True)
    assert len(locking(sent)) == 1


class Views(DeclarativeBase):
    pass


class Seen(Versioned, Views):
    __tablename__ = "seen_accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED VIEW"])
def test_rows_that_are_never_locked_are_not_asked_for_again(engine, stored_rows, retried, kind):
    rows = "SELECT id, max(balance) AS balance, max(version) AS version FROM accounts GROUP BY id"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE {kind} seen_accounts AS {rows}")
    heat(engine, table="seen_accounts")
    for name in ("one", "other"):
        work = unit_of_work(sessionmaker(engine), name=name)(
            lambda session: session.get_one(Seen, 1).balance
        )
        assert work() == 10
    assert len(retried) == 1
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP {kind} seen_accounts")


# -- the lock is not free --------------------------------------------------------------------------

LIMITS = {
    "postgresql": {"connect_args": {"options": "-c lock_timeout=200ms"}},
    "mariadb": {},
    "sqlite": {"connect_args": {"timeout": 0.1}},
}


@pytest.fixture
def patient(database, stored_rows):
    """An engine that soon gives up waiting."""
    made = database.engine(**LIMITS[database.family])
    if database.family == "mariadb":

        @event.listens_for(made, "connect")
        def connect(connection, record):
            connection.cursor().execute("SET SESSION innodb_lock_wait_timeout = 1")

    yield made
    made.dispose()


@pytest.fixture
def holder(engine, stored_rows):
    """A session that never lets the row go."""
    with Session(engine) as session:
        session.get_one(Account, 1).note = "theirs"
        session.flush()
        yield session
        session.rollback()


@pytest.mark.usually("postgresql", "sqlite-wal")
def test_who_only_reads_does_not_wait_again(patient, holder, retried):
    heat(patient)
    work = unit_of_work(sessionmaker(patient))(balance)
    with count_statements(patient) as sent:
        assert work() == 10
    assert len(locking(sent)) == 1
    for error in retried:
        assert cause_of(error) is Cause.LOCK_TIMEOUT
    with count_statements(patient) as sent:
        assert work() == 10
    assert not locking(sent)


@pytest.mark.usually("postgresql", "sqlite-wal")
def test_a_writer_ends_in_the_error_of_the_database(patient, holder):
    heat(patient)

    @unit_of_work(sessionmaker(patient), attempts=3)
    def work(session):
        session.get_one(Account, 1).balance += 1

    with count_statements(patient) as sent, pytest.raises(DBAPIError) as caught:
        work()
    assert cause_of(caught.value) is Cause.LOCK_TIMEOUT
    waits = sum(one.text.startswith("UPDATE") for one in sent.statements) + len(locking(sent))
    assert waits <= 6


@pytest.mark.engines("postgresql")
def test_the_next_attempt_waits_no_longer_for_other_locks(engine, patient, stored_rows, holder):
    """Where the application has no limit of its own, that of the lock stays."""
    heat(engine)
    found = []

    @unit_of_work(sessionmaker(engine))
    def work(session):
        if not found:
            session.execute(text("SET LOCAL lock_timeout = '50ms'"))
        found.append(session.scalar(text("SHOW lock_timeout")))
        read = balance(session)
        found.append(session.scalar(text("SHOW lock_timeout")))
        return read

    assert work() == 10
    assert found == ["50ms", "0", "9999ms"]


# -- levels ----------------------------------------------------------------------------------------


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_hot_row_that_has_moved_since_the_snapshot_is_read_by_the_next_attempt(
    database, stored_rows, other, stored, level
):
    made = database.engine(isolation_level=level)
    heat(made)
    seen = []

    @unit_of_work(sessionmaker(made))
    def work(session):
        seen.append(session.scalar(select(Account.balance).where(Account.id == 2)))
        if len(seen) == 1 and level == "REPEATABLE READ":
            other(Account, 1, balance=50)
        session.get_one(Account, 1).balance += 1

    work()
    made.dispose()
    assert stored(Account, 1)["balance"] == (51 if level == "REPEATABLE READ" else 11)


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.needs("row-locks")
async def test_async_units_do_without_as_well(async_engine, retried, async_store):
    sessions = async_sessionmaker(async_engine)
    async_store(Account(id=1, balance=10))
    heat(async_engine.sync_engine)
    mariadb = async_engine.dialect.name == "mysql"

    @unit_of_work(sessions)
    async def work(session):
        limit = "innodb_lock_wait_timeout = 1" if mariadb else "LOCAL lock_timeout = '200ms'"
        await session.execute(text(f"SET {limit}"))
        return (await session.get_one(Account, 1)).balance

    async with sessions() as holder:
        (await holder.get_one(Account, 1)).note = "theirs"
        await holder.flush()
        assert await work() == 10
        await holder.rollback()
    (error,) = retried
    assert cause_of(error) is Cause.LOCK_TIMEOUT
