"""Short units: reads outside of a transaction, and one guarded statement that commits itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from inspect import signature
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, func, insert, make_url, select, text, update
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    ConfigurationError,
    Isolation,
    OptilockError,
    PreconditionFailed,
    UnitOfWork,
    expect,
    lock,
    merge_fields,
    unit_of_work,
    verify,
)
from optilock.dialects import database_of
from optilock.errors import CommitOutcomeUnknown
from optilock.testing import Wire, wire
from optilock.testing.counting import count_statements
from tests.engines import Target
from tests.support.cut_line import Cut
from tests.support.cut_line import cut as cut
from tests.support.models import Account
from tests.support.pipelined_cases import CASES, Base, Case, World, outcome_of, store

#: What a unit without a transaction cannot have.
OF_TRANSACTIONS = {"isolation", "read_only", "verify_reads"}
#: An error of a plain SELECT ends no transaction, because there is none.
ANOTHER_END = {"an error is swallowed": "stored"}
SHORT = [case for case in CASES if not OF_TRANSACTIONS.intersection(case.options)]
UNPREPARED = {"prepare_threshold": None}
IDS = select(Account.id).order_by(Account.id)


def on(engine: Engine) -> dict[str, Any]:
    """What an engine for short units is made with."""
    if engine.dialect.name in ("mysql", "mariadb"):
        return {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}
    return {}


@pytest.fixture
def short(database: Target, engine: Engine) -> Iterator[Engine]:
    if on(engine) and not _knows_skipping():
        pytest.skip("SQLAlchemy has skip_autocommit_rollback since 2.0.43")
    made = database.engine(**on(engine))
    yield made
    made.dispose()


def _knows_skipping() -> bool:
    return "skip_autocommit_rollback" in signature(DefaultDialect.__init__).parameters


# -- one statement ---------------------------------------------------------------------------------


def test_one_row_is_written_without_a_transaction(account, short, stored) -> None:
    with count_statements(short) as sent, UnitOfWork(short, short=True) as session:
        session.get_one(Account, 1).balance += 1
    assert [one.text.split()[0] for one in sent.statements] == ["SELECT", "UPDATE"]
    assert stored(Account, 1)["balance"] == 11
    assert stored(Account, 1)["version"] == 2


def transactions(session: Session) -> bool:
    """Is a transaction of the database open?"""
    driver = session.connection().connection.driver_connection
    name = session.get_bind().dialect.name
    if name == "sqlite":
        return driver.in_transaction
    if name == "postgresql":
        return driver.info.transaction_status != 0
    return session.scalar(text("SELECT @@in_transaction")) == 1


def test_a_row_that_moved_is_written_by_nobody(account, short, stored, other) -> None:
    with pytest.raises(ConcurrencyError) as raised, UnitOfWork(short, short=True) as session:
        mine = session.get_one(Account, 1)
        other(Account, 1, owner="Eve")
        mine.balance += 1
    assert raised.value.entries[0].database["owner"] == "Eve"
    assert (stored(Account, 1)["owner"], stored(Account, 1)["balance"]) == ("Eve", 10)


def test_a_row_that_moved_is_merged(account, short, stored, other) -> None:
    with UnitOfWork(short, short=True, on_conflict=merge_fields) as session:
        mine = session.get_one(Account, 1)
        other(Account, 1, owner="Eve")
        mine.balance += 1
    assert (stored(Account, 1)["owner"], stored(Account, 1)["balance"]) == ("Eve", 11)


def test_a_decorated_unit_runs_again(account, short, stored, other) -> None:
    runs = []

    @unit_of_work(short, short=True)
    def work(session: Session) -> None:
        mine = session.get_one(Account, 1)
        if not runs:
            other(Account, 1, balance=20)
        runs.append(mine.balance)
        mine.balance += 1

    work()
    assert runs == [10, 20]
    assert stored(Account, 1)["balance"] == 21


# -- more than that ------------------------------------------------------------------------------


def insert_another(session: Session) -> None:
    session.add(Account(id=2, owner="taken"))


def write_in_the_body(session: Session) -> None:
    session.flush()
    raise LookupError


def write_a_statement(session: Session) -> None:
    session.execute(update(Account).where(Account.id == 2).values(owner="lost"))
    raise LookupError


def write_a_text(session: Session) -> None:
    session.execute(text("UPDATE accounts SET owner = 'lost' WHERE id = 2"))
    raise LookupError


def write_in_a_savepoint(session: Session) -> None:
    with session.begin_nested():
        session.get_one(Account, 2).owner = "lost"
    raise LookupError


def delete_another(session: Session) -> None:
    session.delete(session.get_one(Account, 2))
    session.flush()
    raise LookupError


HALVES = [
    insert_another,
    write_in_the_body,
    write_a_statement,
    write_a_text,
    write_in_a_savepoint,
    delete_another,
]


@pytest.mark.parametrize("half", HALVES, ids=lambda half: half.__name__)
def test_nothing_is_ever_half(account, short, stored, half) -> None:
    before = stored(Account, 1), stored(Account, 2)
    with (
        pytest.raises((LookupError, IntegrityError)),
        UnitOfWork(short, short=True) as session,
    ):
        session.get_one(Account, 1).balance += 1
        half(session)
    assert (stored(Account, 1), stored(Account, 2)) == before


def test_two_rows_are_both_written_or_none(account, short, stored, other) -> None:
    with pytest.raises(ConcurrencyError), UnitOfWork(short, short=True) as session:
        first, second = session.get_one(Account, 1), session.get_one(Account, 2)
        other(Account, 2, owner="Eve")
        first.balance, second.balance = 11, 12
    assert stored(Account, 1)["balance"] == 10


def test_a_locked_row_stays_locked(account, short, engine) -> None:
    with UnitOfWork(short, short=True) as session:
        lock(session.get_one(Account, 1))
        assert transactions(session)


def test_promises_are_looked_at_in_a_transaction(account, short, stored, other) -> None:
    with pytest.raises(ConcurrencyError), UnitOfWork(short, short=True) as session:
        verify(session.get_one(Account, 2))
        session.get_one(Account, 1).balance += 1
        other(Account, 2, owner="Eve")
    with pytest.raises(PreconditionFailed), UnitOfWork(short, short=True) as session:
        mine = session.get_one(Account, 1)
        expect(mine, 1)
        other(Account, 1, owner="Eve")
        mine.balance += 1
    assert stored(Account, 1)["balance"] == 10


def test_what_comes_after_the_write_is_refused(account, short, stored) -> None:
    @event.listens_for(short, "after_cursor_execute")
    def after(connection, cursor, statement, parameters, context, many) -> None:
        if statement.startswith("UPDATE"):
            connection.execute(insert(Account).values(id=9))

    with (
        pytest.raises(OptilockError, match=r"short=True.*stored") as raised,
        UnitOfWork(short, short=True) as session,
    ):
        session.get_one(Account, 1).balance += 1
    assert "the unit is stored" in str(raised.value)
    assert stored(Account, 9) is None


# -- the pool --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_the_next_user_of_the_connection_has_transactions(
    account, database, short, stored, fails, begins
) -> None:
    with short.connect() as connection:
        before = mode_of(connection)
    try:
        with UnitOfWork(short, short=True) as session:
            session.get_one(Account, 1).balance += 1
            if begins:
                session.flush()
            if fails:
                raise LookupError
    except LookupError:
        pass
    with short.connect() as connection:
        assert mode_of(connection) == before
        if database.family != "mariadb":
            connection.execute(update(Account).values(owner="lost"))
            connection.rollback()
    assert stored(Account, 1)["owner"] == "Ada"
    assert stored(Account, 1)["balance"] == (10 if fails else 11)


def mode_of(connection: Any) -> Any:
    driver = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        return driver.isolation_level
    ask = getattr(driver, "get_autocommit", None)
    return driver.autocommit if ask is None else ask()


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        {"isolation": Isolation.SERIALIZABLE},
        {"read_only": True},
        {"verify_reads": True},
        {"pipelined": True},
    ],
    ids=str,
)
@pytest.mark.engines("sqlite-wal")
def test_options_of_a_transaction_are_refused(engine, option) -> None:
    (name,) = option
    with pytest.raises(ConfigurationError, match=rf"short=True.*{name}="):
        UnitOfWork(engine, short=True, **option)


@pytest.mark.engines("postgresql", "sqlite-wal")
def test_an_engine_at_a_level_is_refused(account, database) -> None:
    engine = database.engine(isolation_level="SERIALIZABLE")
    with (
        pytest.raises(ConfigurationError, match="SERIALIZABLE"),
        UnitOfWork(engine, short=True) as session,
    ):
        session.get_one(Account, 1)
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "pg8000"])
def test_drivers_that_are_not_known_to_leave_begin_out_are_refused(driver: str) -> None:
    dialect = make_url(f"postgresql+{driver}://").get_dialect()()
    refused = pytest.raises(ConfigurationError, match="postgresql over pg8000")
    with refused if driver == "pg8000" else nullcontext():
        database_of(dialect).refuse_short(dialect)


@pytest.mark.engines("mariadb")
def test_mariadb_wants_an_engine_of_its_own(engine, database) -> None:
    with pytest.raises(ConfigurationError, match="skip_autocommit_rollback=True"):
        UnitOfWork(engine, short=True)


@pytest.mark.engines("mariadb")
def test_other_units_over_such_an_engine_are_refused(account, short) -> None:
    with (
        pytest.raises(ConfigurationError, match="AUTOCOMMIT"),
        UnitOfWork(short) as session,
    ):
        session.get_one(Account, 1)


# -- trips -----------------------------------------------------------------------------------------


@pytest.fixture
def line(database: Target) -> Iterator[Wire]:
    with wire(database.url) as line:
        yield line


@pytest.mark.engines("postgresql", "mariadb")
def test_trips(account, line, short, engine, stored) -> None:
    far = create_engine(line.url, **on(engine))
    with UnitOfWork(far, short=True) as session:  # what is asked once for an engine is asked now
        session.get_one(Account, 2)
    trips = []
    with line.counting() as counted:
        with UnitOfWork(far, short=True) as session:
            session.get_one(Account, 1).balance += 1
        trips.append(counted.count)
        with UnitOfWork(far, short=True) as session:
            session.get_one(Account, 1)
        trips.append(counted.count - trips[0])
    far.dispose()
    assert stored(Account, 1)["balance"] == 11
    assert trips == ([2, 1] if engine.dialect.name == "postgresql" else [3, 2])


@pytest.mark.full
@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_a_unit_ends_as_it_does_without(engine, line: Wire, case: Case) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE numbers")
    world = World(engine)
    far = create_engine(line.url, connect_args=UNPREPARED)
    far.connect().close()
    ends = []
    for short in (False, True):
        store(engine)
        error = None
        with line.counting() as trips:
            try:
                with UnitOfWork(far, short=short, **case.options) as session:
                    case.body(session, world)
            except Exception as raised:
                error = raised
        ends.append((trips.count, outcome_of(error), world.rows()))
    far.dispose()
    (without, *before), (with_it, *after) = ends
    if case.name in ANOTHER_END:
        assert after[0] == ANOTHER_END[case.name]
    else:
        assert after == before
    assert with_it <= without


# -- lost ------------------------------------------------------------------------------------------


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("passes", [True, False])
def test_a_connection_lost_in_the_write_is_an_unknown_outcome(
    account, cut: Cut, stored, passes
) -> None:
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    with (
        pytest.raises(CommitOutcomeUnknown, match="short=True"),
        UnitOfWork(engine, short=True) as session,
    ):
        session.get_one(Account, 1).owner = "Eve"
        cut.at, cut.passes = b"UPDATE", passes
    assert stored(Account, 1)["owner"] == ("Eve" if passes else "Ada")
    engine.dispose()


@pytest.mark.engines("postgresql")
def test_a_connection_that_was_ended_before_the_write_is_certain(account, engine, database) -> None:
    made = database.engine(pool_size=1)
    with pytest.raises(OperationalError) as raised, UnitOfWork(made, short=True) as session:
        mine = session.get_one(Account, 1)
        process = session.connection().connection.driver_connection.info.backend_pid
        with engine.connect() as connection:
            connection.execute(select(func.pg_terminate_backend(process, 5000)))
        mine.balance += 1
    assert not isinstance(raised.value, CommitOutcomeUnknown)
    made.dispose()


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_async_unit(async_database: Target, async_engine: AsyncEngine) -> None:
    options = on(async_engine.sync_engine)
    if options and not _knows_skipping():
        pytest.skip("SQLAlchemy has skip_autocommit_rollback since 2.0.43")
    assert async_database.async_url is not None
    short = create_async_engine(async_database.async_url, **{**async_database.options, **options})
    async_database.prepare(short.sync_engine)

    async def stored() -> list[tuple[Any, ...]]:
        async with async_engine.connect() as connection:
            found = select(Account.id, Account.owner, Account.balance).order_by(Account.id)
            return [tuple(row) for row in await connection.execute(found)]

    async with AsyncUnitOfWork(async_engine) as session:
        connection = await session.connection()
        await connection.run_sync(Account.metadata.create_all, tables=[Account.__table__])
        session.add(Account(id=1, owner="Ada", balance=10))

    with count_statements(short.sync_engine) as sent:
        async with AsyncUnitOfWork(short, short=True) as session:
            (await session.get_one(Account, 1)).balance += 1
    assert [one.text.split()[0] for one in sent.statements] == ["SELECT", "UPDATE"]
    async with AsyncUnitOfWork(short, short=True, on_conflict=merge_fields) as session:
        mine = await session.get_one(Account, 1)
        async with AsyncUnitOfWork(async_engine, independent=True) as other:
            (await other.get_one(Account, 1)).owner = "Eve"
        mine.balance += 1
        session.add(Account(id=7, owner="Bob"))
    assert await stored() == [(1, "Eve", 12), (7, "Bob", 0)]
    with pytest.raises(LookupError):
        async with AsyncUnitOfWork(short, short=True) as session:
            (await session.get_one(Account, 1)).balance += 1
            await session.flush()
            raise LookupError
    assert await stored() == [(1, "Eve", 12), (7, "Bob", 0)]
    for made in (short, async_engine):
        await made.dispose()


# -- listeners of the application ------------------------------------------------------------------


def test_a_promise_that_a_listener_makes_in_the_last_flush_is_looked_at(
    account, short, stored, other
) -> None:
    sessions = sessionmaker(short)

    @event.listens_for(sessions, "before_flush")
    def before_flush(session: Session, context: Any, objects: Any) -> None:
        with session.no_autoflush:
            verify(session.get_one(Account, 2))
        other(Account, 2, balance=6)

    with pytest.raises(ConcurrencyError) as raised, UnitOfWork(sessions, short=True) as session:
        session.get_one(Account, 2)
        session.get_one(Account, 1).balance += 1
    assert [entry.identity for entry in raised.value.entries] == [(2,)]
    assert stored(Account, 1)["balance"] == 10


def writes_when_it_begins(sessions: sessionmaker[Session]) -> None:
    @event.listens_for(sessions, "after_begin")
    def after_begin(session: Session, transaction: Any, connection: Any) -> None:
        connection.execute(insert(Account).values(id=9))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.engines("sqlite", "postgresql")
def test_what_a_listener_writes_when_the_transaction_begins_belongs_to_the_unit(
    account, engine, stored, fails
) -> None:
    sessions = sessionmaker(engine)
    writes_when_it_begins(sessions)
    try:
        with UnitOfWork(sessions, short=True) as session:
            session.get_one(Account, 1).balance += 1
            if fails:
                raise LookupError
    except LookupError:
        pass
    assert (stored(Account, 9) is None) is fails
    assert stored(Account, 1)["balance"] == (10 if fails else 11)


@pytest.mark.anyio
@pytest.mark.engines("sqlite", "postgresql")
async def test_so_it_does_in_an_async_unit(async_engine: AsyncEngine) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(Account.metadata.create_all, tables=[Account.__table__])
        await connection.execute(insert(Account).values(id=1))
    sessions = sessionmaker()
    writes_when_it_begins(sessions)
    made = async_sessionmaker(async_engine, sync_session_class=sessions.class_)
    with pytest.raises(LookupError):
        async with AsyncUnitOfWork(made, short=True) as session:
            (await session.get_one(Account, 1)).balance += 1
            await session.flush()
            raise LookupError
    async with async_engine.connect() as connection:
        assert (await connection.scalars(IDS)).all() == [1]
    async with AsyncUnitOfWork(made, short=True) as session:
        (await session.get_one(Account, 1)).balance += 1
    async with async_engine.connect() as connection:
        assert (await connection.scalars(IDS)).all() == [1, 9]
    await async_engine.dispose()


@pytest.mark.parametrize(
    "sends", ["SELECT 1", "INSERT INTO accounts (id, balance, version) VALUES (8, 0, 1)"]
)
@pytest.mark.parametrize("moves", [False, True])
def test_a_statement_that_a_listener_sends_before_the_write_belongs_to_the_unit(
    account, short, stored, other, sends, moves
) -> None:
    @event.listens_for(short, "before_cursor_execute")
    def before(connection, cursor, statement, parameters, context, many) -> None:
        if statement.startswith("UPDATE") and "id = 8" not in statement:
            connection.exec_driver_sql(sends)

    unit = UnitOfWork(short, short=True)
    with pytest.raises(ConcurrencyError) if moves else nullcontext(), unit as session:
        session.get_one(Account, 1).balance += 1
        if moves:
            other(Account, 1, balance=100)
    assert stored(Account, 1)["balance"] == (100 if moves else 11)
    assert (stored(Account, 8) is None) is (moves or sends == "SELECT 1")


def test_a_listener_that_fails_after_the_write_is_told_that_the_unit_is_stored(
    account, short, stored
) -> None:
    @event.listens_for(short, "after_cursor_execute")
    def after(connection, cursor, statement, parameters, context, many) -> None:
        if statement.startswith("UPDATE"):
            raise StaleDataError("of another unit")

    @unit_of_work(sessionmaker(short), short=True)
    def add(session) -> None:
        session.get_one(Account, 1).balance += 1

    with pytest.raises(StaleDataError) as raised:
        add()
    assert stored(Account, 1)["balance"] == 11  # and not 12: it is not run again
    assert [note for note in raised.value.__notes__ if "the unit is stored" in note]


@pytest.mark.parametrize("value", [2**70, object()], ids=["too large", "no number"])
def test_a_value_that_the_driver_does_not_send_is_not_told_as_stored(
    account, short, stored, value
) -> None:
    unit = UnitOfWork(short, short=True)
    with pytest.raises((DBAPIError, OverflowError)) as raised, unit as session:
        session.get_one(Account, 1).balance = value
    assert stored(Account, 1)["balance"] == 10
    assert not [note for note in getattr(raised.value, "__notes__", ()) if "is stored" in note]


@pytest.mark.anyio
@pytest.mark.engines("sqlite", "postgresql")
async def test_a_stream_has_the_transaction_that_it_needs(async_engine: AsyncEngine) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(Account.metadata.create_all, tables=[Account.__table__])
        await connection.execute(insert(Account), [{"id": n, "balance": n} for n in range(1, 9)])
    async with AsyncUnitOfWork(async_engine, short=True) as session:
        rows = await session.stream_scalars(IDS.execution_options(yield_per=2))
        assert [one async for one in rows] == list(range(1, 9))
        (await session.get_one(Account, 1)).balance += 1
    async with async_engine.connect() as connection:
        assert await connection.scalar(select(func.sum(Account.balance))) == 37
    await async_engine.dispose()
