"""Connections that the server ends: those that a unit finds in its pool, and its own; old plans.

A server that was restarted ends all connections, and a unit that gets one of them has done nothing:
it is run again. So it is when a migration has altered a table under statements that the driver has
prepared.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    Isolation,
    UnitOfWork,
    Versioned,
    is_transient,
    retry,
    retrying,
    unit_of_work,
    watch,
)
from optilock.asyncio import AsyncUnitOfWork
from optilock.dialects.connections import has_ended_idle
from optilock.errors import CommitOutcomeUnknown, ConcurrencyError, NotCommitted
from optilock.resolvers import Resolution
from optilock.testing import Faults

pytestmark = pytest.mark.engines("postgresql", "mariadb")


class Base(DeclarativeBase):
    pass


class Meter(Versioned, Base):
    __tablename__ = "pooled_meters"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    count: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def meters(engine: Engine, store: Any) -> Engine:
    """Two rows; the engine is that of somebody else."""
    store(Meter(id=1), Meter(id=2))
    return engine


@pytest.fixture
def async_meters(async_database: Any, async_store: Any) -> Iterator[Engine]:
    engine = async_database.engine()
    async_store(Meter(id=1), Meter(id=2))
    yield engine
    engine.dispose()


#: The number of a connection, and what ends it.
KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 5000)"),
    "mysql": ("SELECT connection_id()", "KILL {}"),
}


def kill(engine: Engine, numbers: list[int]) -> None:
    """End connections from the server's side, and wait until they are gone."""
    with engine.connect() as connection:
        for number in numbers:
            connection.exec_driver_sql(KILL[engine.dialect.name][1].format(number))
        if engine.dialect.name == "mysql":
            gone = text("SELECT count(*) FROM information_schema.processlist WHERE id IN :ids")
            while connection.scalar(gone, {"ids": tuple(numbers)}):
                pass


def dead_pool(database: Any, meters: Engine, size: int = 4) -> Engine:
    """An engine whose pool is full of connections that the server has ended."""
    made = create_engine(database.url, pool_size=size, max_overflow=0, **database.options)
    held = [made.connect() for _ in range(size)]
    numbers = [one.exec_driver_sql(KILL[made.dialect.name][0]).scalar_one() for one in held]
    for one in held:
        one.close()
    kill(meters, numbers)
    return made


def count(engine: Engine) -> int | None:
    with Session(engine) as session:
        return session.scalar(select(Meter.count).where(Meter.id == 1))


@pytest.mark.parametrize("how", ["flush", "flush with a listener", "statement"])
def test_a_rollback_that_finds_no_server_hides_no_error(database, meters, how):
    """The unit had ended in a deadlock, and is run again after it."""
    engine = create_engine(database.url, **database.options)
    sessions = sessionmaker(engine)
    if how == "flush with a listener":
        event.listen(sessions, "after_flush", lambda session, context: None)
    runs = []

    @event.listens_for(engine, "rollback")
    def rollback(connection: Any) -> None:
        if len(runs) == 1:
            numbered = KILL[engine.dialect.name][0]
            cursor = connection.connection.cursor()
            if engine.dialect.name == "postgresql":
                kill(meters, [connection.connection.driver_connection.info.backend_pid])
            else:
                cursor.execute(numbered)
                kill(meters, [cursor.fetchone()[0]])
            cursor.close()

    @unit_of_work(sessions, retry=retrying(attempts=2, wait_initial=0))
    def write(session: Session) -> None:
        runs.append(1)
        if how == "statement":
            session.execute(update(Meter).where(Meter.id == 1).values(count=1))
        else:
            session.get_one(Meter, 1).count += 1

    with Faults(engine) as faults, faults.deadlock():
        write()
    engine.dispose()
    assert len(runs) == 2
    assert count(meters) == 1


@pytest.mark.engines("mariadb")
def test_a_rollback_on_a_broken_line_hides_no_conflict(database):
    """PyMySQL's error has one of the operating system as its context, and that the first one."""
    engine = create_engine(database.url, **database.options)
    with pytest.raises(OperationalError) as caught, engine.begin() as connection:
        driver: Any = connection.connection.driver_connection
        driver._sock.shutdown(socket.SHUT_RDWR)
        raise StaleDataError("another one was first")
    engine.dispose()
    assert is_transient(caught.value)


LEVELS = [None, *Isolation]


@pytest.mark.parametrize(
    "options", [{}, {"read_only": True}, {"strategy": "pessimistic"}], ids=["", "reads", "locks"]
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_unit_that_gets_a_dead_connection_is_run_again_at_any_level(
    database, meters, level, options
):
    """C7, G1: and it meets one of them, however many the pool has."""
    engine = dead_pool(database, meters)
    runs = []

    @unit_of_work(engine, retry=retrying(attempts=2, wait_initial=0), isolation=level, **options)
    def read_or_write(session: Session) -> None:
        runs.append(1)
        meter = session.get_one(Meter, 1)
        if "read_only" not in options:
            meter.count += 1

    read_or_write()
    engine.dispose()
    assert len(runs) == 2
    assert count(meters) == ("read_only" not in options)


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(
    "options",
    [{"pipelined": True, "isolation": level} for level in LEVELS],
)
def test_a_unit_with_fewer_round_trips_is_run_again_too(database, meters, options):
    """C7, G1."""
    engine = dead_pool(database, meters)
    runs = []

    @unit_of_work(engine, retry=retrying(attempts=2, wait_initial=0), **options)
    def write(session: Session) -> None:
        runs.append(1)
        session.get_one(Meter, 1).count += 1

    write()
    engine.dispose()
    assert len(runs) == 2
    assert count(meters) == 1


def test_the_level_may_be_the_applications_own(database, meters):
    """C7, G1: SQLAlchemy leaves the driver's error as it is while it sets a level."""
    engine = dead_pool(database, meters, size=1)
    at_level = engine.execution_options(isolation_level="SERIALIZABLE")
    runs = []

    @unit_of_work(at_level, retry=retrying(attempts=2, wait_initial=0))
    def write(session: Session) -> None:
        runs.append(1)
        session.get_one(Meter, 1).count += 1

    write()
    engine.dispose()
    assert len(runs) == 2
    assert count(meters) == 1


def test_a_commit_that_gets_no_answer_stays_unknown_at_any_level(database, meters):
    """G1: the other side of the same question."""
    for level in LEVELS:
        engine = create_engine(database.url, pool_size=1, **database.options)
        runs = []

        @unit_of_work(engine, retry=retrying(attempts=3, wait_initial=0), isolation=level)
        def write(session: Session) -> None:
            runs.append(1)  # noqa: B023
            session.get_one(Meter, 1).count += 1
            session.flush()
            number = session.connection().exec_driver_sql(KILL[meters.dialect.name][0])
            kill(meters, [number.scalar_one()])

        with pytest.raises(CommitOutcomeUnknown):
            write()
        engine.dispose()
        assert len(runs) == 1
    assert count(meters) == 0


@pytest.mark.engines("postgresql")
def test_a_connection_lost_while_a_result_is_read_is_lost_before_commit(database, meters):
    """G1: such an error names no statement either."""
    engine = create_engine(database.url, pool_size=1)
    table: Any = Meter.__table__
    rows = [{"id": number, "count": 0, "version": 1} for number in range(3, 5_000)]
    with meters.begin() as connection:
        connection.execute(table.insert(), rows)
    runs = []

    @unit_of_work(engine, retry=retrying(attempts=2, wait_initial=0))
    def read(session: Session) -> int:
        runs.append(1)
        driver: Any = session.connection().connection.driver_connection
        with session.execute(select(Meter).execution_options(yield_per=10)) as found:
            next(found)
            if len(runs) == 1:
                kill(meters, [driver.info.backend_pid])
            return sum(1 for _ in found)

    assert read() == 4_998
    engine.dispose()
    assert len(runs) == 2


@pytest.mark.engines("postgresql-asyncpg")
@pytest.mark.parametrize("how", ["unit", "session"])
@pytest.mark.anyio
async def test_an_async_function_is_run_again_when_its_stream_breaks_off(
    async_database, async_meters, how
):
    """C7, G1: asyncpg's error there is no error of SQLAlchemy's."""
    runs: list[int] = []

    async def read(session: AsyncSession) -> int:
        runs.append(1)
        (await session.get_one(Meter, 1)).count += 1
        mine = (await session.scalars(text("SELECT pg_backend_pid()"))).one()
        series = text("SELECT generate_series(1, 5000)").execution_options(yield_per=10)
        rows = await session.stream(series)
        await anext(rows)
        if len(runs) == 1:
            kill(async_meters, [mine])
        found = 1 + len(await rows.all())
        await session.commit() if how == "session" else None
        return found

    engine = create_async_engine(async_database.async_url, pool_size=1)

    @retry(attempts=2, wait_initial=0)
    async def read_in_session() -> int:
        async with AsyncSession(engine) as session:
            return await read(session)

    in_unit = unit_of_work(engine, retry=retrying(attempts=2, wait_initial=0))(read)
    assert await (in_unit() if how == "unit" else read_in_session()) == 5_000
    await engine.dispose()
    assert len(runs) == 2
    assert count(async_meters) == 1


@pytest.mark.parametrize("how", ["session", "begin"])
@pytest.mark.anyio
async def test_an_async_session_that_finds_no_server_hides_no_error(
    async_database, async_meters, how
):
    """Its ROLLBACK is sent in a task of its own."""
    runs: list[int] = []

    async def write(session: AsyncSession) -> None:
        runs.append(1)
        (await session.get_one(Meter, 1)).count += 1
        await session.flush()
        if len(runs) == 1:
            await session.run_sync(lose, async_meters)
            raise NotCommitted("an error that is transient")

    sessions = async_sessionmaker(create_async_engine(async_database.async_url, pool_size=1))

    @retry(attempts=2, wait_initial=0)
    async def run() -> None:
        if how == "begin":
            async with sessions.begin() as session:
                await write(session)
            return
        async with sessions() as session:
            await write(session)
            await session.commit()

    await run()
    await sessions.kw["bind"].dispose()
    assert len(runs) == 2
    assert count(async_meters) == 1


@pytest.mark.parametrize("error", ["conflict", "hook"])
def test_a_transaction_that_was_kept_and_lost_hides_no_error(database, meters, error):
    """Its ROLLBACK, after which no attempt follows, finds no server."""
    engine = create_engine(database.url, pool_size=1, **database.options)
    with engine.connect() as connection:  # the only one of the pool
        numbers = [connection.scalar(text(KILL[engine.dialect.name][0]))]

    def before_retry(event: object) -> None:
        kill(meters, numbers)
        raise LookupError("of the hook")

    def resolve(entry: object) -> Resolution:
        if error == "conflict":
            kill(meters, numbers)
        return Resolution.reject()

    attempts = 1 if error == "conflict" else 2

    @unit_of_work(
        engine,
        retry=retrying(attempts=attempts, before_retry=before_retry, wait_initial=0),
        on_conflict=resolve,
    )
    def edit(session: Session) -> None:
        meter = session.get_one(Meter, 1)
        with meters.begin() as connection:
            values = {"count": 7, "version": Meter.version + 1}
            connection.execute(update(Meter).where(Meter.id == 1).values(values))
        meter.count += 1

    with pytest.raises(ConcurrencyError if error == "conflict" else LookupError):
        edit()
    assert engine.pool.checkedout() == 0
    engine.dispose()
    assert count(meters) == 7


def test_an_error_that_lost_its_traceback_may_have_come_from_commit(database, meters):
    """G1: fail closed, where nothing shows where it was raised."""
    engine = dead_pool(database, meters, size=1)
    with pytest.raises(DBAPIError) as caught, engine.connect() as connection:
        connection.get_isolation_level()
    engine.dispose()
    assert is_transient(caught.value)
    assert not is_transient(caught.value.with_traceback(None))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.anyio
async def test_async_units_are_run_again_too(async_database, async_meters, level):
    """C7, G1: on each driver."""
    runs = []

    engine = create_async_engine(async_database.async_url, pool_size=3, max_overflow=0)
    held = [await engine.connect() for _ in range(3)]
    ask = KILL[engine.dialect.name][0]
    numbers = [(await one.exec_driver_sql(ask)).scalar_one() for one in held]
    for one in held:
        await one.close()
    kill(async_meters, numbers)

    @unit_of_work(
        async_sessionmaker(engine), retry=retrying(attempts=2, wait_initial=0), isolation=level
    )
    async def write(session: AsyncSession) -> None:
        runs.append(1)
        (await session.get_one(Meter, 1)).count += 1

    try:
        await write()
    finally:
        await engine.dispose()
    assert len(runs) == 2
    assert count(async_meters) == 1


# -- a table that a migration has altered ----------------------------------------------------------


def alter(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE pooled_meters ALTER COLUMN count TYPE BIGINT")


def ticking(engine: Engine, attempts: int, **options: Any) -> Callable[[], None]:
    @unit_of_work(
        watch(sessionmaker(engine)), retry=retrying(wait_initial=0, attempts=attempts), **options
    )
    def tick(session: Session) -> None:
        session.get_one(Meter, 1).count += 1

    return tick


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(
    "options", [{}, {"pipelined": True}, {"isolation": Isolation.SERIALIZABLE}]
)
def test_a_unit_is_run_again_when_its_statements_were_prepared_for_the_old_table(
    database, meters, options
):
    """D4: "cached plan must not change result type"; once, though each connection has old ones."""
    engine = create_engine(database.url, pool_size=4, max_overflow=0)
    prepare = ticking(engine, attempts=1, **options)
    for _ in range(4 * 8):  # the pool gives its connections in turn; the sixth use prepares
        prepare()
    alter(meters)
    tick = ticking(engine, attempts=2, **options)
    for _ in range(4):
        tick()
    engine.dispose()
    assert count(meters) == 4 * 8 + 4


@pytest.mark.engines("postgresql")
def test_a_function_of_ones_own_is_run_again_after_it(database, meters):
    """D4: without watched sessions."""
    engine = create_engine(database.url, pool_size=1)
    runs = []

    @retry(attempts=2, wait_initial=0)
    def read() -> int | None:
        runs.append(1)
        with Session(engine) as session, session.begin():
            return session.scalar(select(Meter.count).where(Meter.id == 1))

    for _ in range(8):
        read()
    alter(meters)
    assert read() == 0
    engine.dispose()
    assert len(runs) == 10


@pytest.mark.engines("postgresql")
def test_a_savepoint_can_still_be_undone_after_it(database, meters):
    """D4: the connection itself is as good as before."""
    engine = create_engine(database.url, pool_size=1)
    tick = ticking(engine, attempts=1)
    for _ in range(8):
        tick()
    alter(meters)
    with UnitOfWork(engine) as session:
        with pytest.raises(DBAPIError), session.begin_nested():
            session.get_one(Meter, 1)
        session.get_one(Meter, 1).count += 1
    engine.dispose()
    assert count(meters) == 9


@pytest.mark.engines("postgresql")
@pytest.mark.anyio
async def test_async_units_are_run_again_after_it_too(async_database, async_meters):
    """D4: asyncpg prepares at the first use."""

    engine = create_async_engine(async_database.async_url, pool_size=1)

    @unit_of_work(async_sessionmaker(engine), retry=retrying(attempts=2, wait_initial=0))
    async def tick(session: AsyncSession) -> None:
        (await session.get_one(Meter, 1)).count += 1

    for _ in range(8):
        await tick()
    alter(async_meters)
    await tick()
    await engine.dispose()
    assert count(async_meters) == 9


@pytest.mark.engines("mariadb")
def test_a_unit_is_run_again_when_its_snapshot_is_older_than_the_table(database, meters):
    """D4: MariaDB's form of it, 1412, "please retry transaction"."""
    engine = create_engine(database.url)
    runs = []

    @unit_of_work(
        engine, retry=retrying(attempts=2, wait_initial=0), isolation=Isolation.REPEATABLE_READ
    )
    def read(session: Session) -> None:
        runs.append(1)
        session.execute(text("SELECT 1 FROM information_schema.tables LIMIT 1"))
        session.execute(text("START TRANSACTION WITH CONSISTENT SNAPSHOT"))
        if len(runs) == 1:
            with meters.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE pooled_meters MODIFY count BIGINT")
        session.get_one(Meter, 1)

    read()
    engine.dispose()
    assert len(runs) == 2


# -- lost inside of a unit, where the program catches what is raised -------------------------------


def test_the_end_of_an_idle_connection_is_seen_without_a_statement(database, meters):
    """As far as the driver's socket shows it; SQLite has none."""
    engine = create_engine(database.url, pool_size=1, **database.options)
    with engine.connect() as connection:
        number = connection.exec_driver_sql(KILL[engine.dialect.name][0]).scalar_one()
        connection.rollback()
        assert not has_ended_idle(connection)
        kill(meters, [number])
        assert has_ended_idle(connection)
        connection.invalidate()
    engine.dispose()


def lose(session: Session, meters: Engine) -> None:
    number = session.connection().exec_driver_sql(KILL[meters.dialect.name][0]).scalar_one()
    kill(meters, [number])


def in_a_savepoint(session: Session, lost: Callable[[], None]) -> None:
    with suppress(DBAPIError), session.begin_nested():
        lost()
        session.get_one(Meter, 2).count += 1
        session.flush()


def at_release(session: Session, lost: Callable[[], None]) -> None:
    with suppress(DBAPIError), session.begin_nested():
        session.get_one(Meter, 2).count += 1
        session.flush()
        lost()


def without_a_savepoint(session: Session, lost: Callable[[], None]) -> None:
    lost()
    session.get_one(Meter, 2).count += 1
    with suppress(DBAPIError):
        session.flush()


def while_an_inner_unit_is_undone(session: Session, lost: Callable[[], None]) -> None:
    with (
        suppress(LookupError),
        UnitOfWork(session.info["engine"], propagation="savepoint") as inner,
    ):
        assert inner is session
        inner.get_one(Meter, 2).count += 1
        inner.flush()
        lost()
        raise LookupError("of the program, which catches it")


def in_an_inner_unit(session: Session, lost: Callable[[], None]) -> None:
    for options in ({"propagation": "savepoint"}, {}):
        with (
            suppress(DBAPIError, PendingRollbackError),
            UnitOfWork(session.info["engine"], **options) as inner,
        ):
            lost()
            inner.get_one(Meter, 2).count += 1
            inner.flush()


AFTERWARDS: list[Callable[[Session], object]] = [
    lambda session: None,
    lambda session: session.get_one(Meter, 2, populate_existing=True),
    lambda session: session.flush(),
]


@pytest.mark.parametrize("afterwards", AFTERWARDS, ids=["commit", "read", "write"])
@pytest.mark.parametrize(
    "swallow",
    [
        in_a_savepoint,
        at_release,
        without_a_savepoint,
        while_an_inner_unit_is_undone,
        in_an_inner_unit,
    ],
)
def test_a_lost_connection_that_the_program_has_caught_is_still_what_ends_the_unit(
    database, meters, swallow, afterwards
):
    """G4, G6: not SQLAlchemy's refusal of what came after it, nor the program's own error."""
    engine = create_engine(database.url, pool_size=1, **database.options)
    errors: list[BaseException] = []

    @unit_of_work(
        engine,
        retry=retrying(attempts=2, wait_initial=0, before_retry=lambda e: errors.append(e.error)),
    )
    def edit(session: Session) -> None:
        session.info["engine"] = engine
        session.get_one(Meter, 1).count += 1
        session.flush()
        swallow(session, lambda: None if errors else lose(session, meters))
        afterwards(session)

    edit()
    engine.dispose()
    [error] = errors
    assert isinstance(error, DBAPIError)
    assert error.connection_invalidated
    assert count(meters) == 1


def test_an_error_of_the_programs_own_is_not_hidden_by_a_lost_connection(database, meters):
    """G4: when it is what leaves the unit."""
    engine = create_engine(database.url, pool_size=1, **database.options)
    with pytest.raises(LookupError, match="mine"), UnitOfWork(engine) as session:
        in_a_savepoint(session, lambda: lose(session, meters))
        raise LookupError("mine")
    engine.dispose()


@pytest.mark.anyio
async def test_an_async_unit_is_ended_by_the_lost_connection_too(async_database, async_meters):
    """G4."""

    engine = create_async_engine(async_database.async_url, pool_size=1)
    errors: list[BaseException] = []
    sessions = async_sessionmaker(engine)

    @unit_of_work(
        sessions,
        retry=retrying(attempts=2, wait_initial=0, before_retry=lambda e: errors.append(e.error)),
    )
    async def edit(session: AsyncSession) -> None:
        (await session.get_one(Meter, 1)).count += 1
        with suppress(LookupError):
            async with AsyncUnitOfWork(sessions, propagation="savepoint") as inner:
                (await inner.get_one(Meter, 2)).count += 1
                await inner.flush()
                if not errors:
                    await inner.run_sync(lose, async_meters)
                raise LookupError("of the program, which catches it")

    await edit()
    await engine.dispose()
    assert [type(one).__mro__.count(DBAPIError) for one in errors] == [1]
    assert count(async_meters) == 1
