"""Who ends a transaction early, and what runs in it: the second half of it is never committed.

Each program moves 10 from Ada's account to Bob's, in two flushes. Between them the transaction ends
in one of :data:`WAYS`. The errors on the way are caught.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from optilock_apps.servers import ServerMissing, mariadb
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    OptilockError,
    UnitOfWork,
    is_transient,
    retrying,
    unit_of_work,
    watch,
)
from optilock._watched.session.record import record_of
from optilock.check import check
from optilock.errors import TransactionEnded
from optilock.queue import Message, Queue
from optilock.tables.names import commit_tokens
from optilock.tables.queue import message_tables
from tests.database.queue.test_worker import Running, left
from tests.engines import skip_without
from tests.support.models import Account
from tests.support.waiting import until

Way = Callable[[Session], object]
COUPON = text("INSERT INTO coupons (code) VALUES ('taken')")
ENGINES = ("sqlite-wal", "postgresql", "mariadb")


def by(sql: str) -> Way:
    """The program's own SQL text."""
    return lambda session: session.execute(text(sql))


def by_core(sql: str) -> Way:
    return lambda session: session.connection().exec_driver_sql(sql)


def by_cursor(sql: str) -> Way:
    """The driver's own cursor."""

    def way(session: Session) -> None:
        cursor = session.connection().connection.cursor()
        with contextlib.suppress(Exception):
            cursor.execute(sql)
        cursor.close()

    return way


def by_driver(session: Session) -> None:
    session.connection().connection.commit()


def interrupted(session: Session) -> None:
    """The usual time limit of SQLite."""
    driver = session.connection().connection.driver_connection
    driver = getattr(driver, "_conn", driver)  # aiosqlite
    driver.set_progress_handler(lambda: 1, 100)
    try:
        session.execute(text("UPDATE coupons SET code = code || '!'"))
    finally:
        driver.set_progress_handler(None, 0)


BALANCES = select(Account.balance).order_by(Account.id)
#: Database -> how its transaction ends -> who does it, and whether the first half may be stored.
WAYS: dict[str, dict[str, tuple[Way, bool]]] = {
    "sqlite": {
        "on conflict": (lambda session: session.execute(COUPON), False),
        "trigger": (by("INSERT INTO coupons (code) VALUES ('bad')"), False),
        "interrupted": (interrupted, False),
        "commit": (by("COMMIT"), True),
        "rollback": (by("/* all */ ROLLBACK"), False),
        "core": (by_core("COMMIT"), True),
        "cursor": (by_cursor("COMMIT"), True),
        "error of a cursor": (by_cursor(COUPON.text), False),
        "driver": (by_driver, True),
    },
    "postgresql": {
        "commit": (by("COMMIT"), True),
        "chain": (by("-- on\nCOMMIT AND CHAIN"), True),
        "rollback": (by("ABORT"), False),
        "rollback and chain": (by("ROLLBACK AND CHAIN"), False),
        "core": (by_core("END"), True),
        "cursor": (by_cursor("COMMIT"), True),
        "driver": (by_driver, True),
        "failed": (by("SELECT * FROM there_is_no_such_table"), False),
        "failed cursor": (by_cursor("SELECT * FROM there_is_no_such_table"), False),
    },
    "mysql": {
        "commit": (by("COMMIT"), True),
        "chain": (by("COMMIT AND CHAIN"), True),
        "begin": (by("START TRANSACTION"), True),
        "rollback": (by("# on\nROLLBACK AND CHAIN"), False),
        "table": (by("CREATE TABLE made_inside (id INT)"), True),
        "procedure": (by("CALL commits()"), True),
        "procedure that goes on": (by("CALL goes_on()"), True),
        "block": (by("BEGIN NOT ATOMIC COMMIT; INSERT INTO coupons VALUES ('n'); END"), True),
        "core": (by_core("COMMIT"), True),
        "cursor": (by_cursor("COMMIT"), True),
        "driver": (by_driver, True),
    },
}
PREPARE = {
    "sqlite": [
        "CREATE TABLE coupons (code TEXT UNIQUE ON CONFLICT ROLLBACK)",
        "CREATE TRIGGER bad BEFORE INSERT ON coupons WHEN NEW.code = 'bad'"
        " BEGIN SELECT RAISE(ROLLBACK, 'bad'); END",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 500)"
        " INSERT INTO coupons SELECT 'c' || i FROM n",
        COUPON.text,
    ],
    "postgresql": [],
    "mysql": [
        "CREATE TABLE coupons (code VARCHAR(20))",
        "CREATE PROCEDURE commits() COMMIT",
        "CREATE PROCEDURE goes_on() BEGIN COMMIT; INSERT INTO coupons VALUES ('x'); END",
    ],
}
CASES = [
    pytest.param(name, id=f"{database}: {name}", marks=pytest.mark.engines(engine))
    for engine, database in zip(ENGINES, WAYS, strict=True)
    for name in WAYS[database]
]


def half(session: Session, key: int, by: int) -> None:
    session.get_one(Account, key).balance += by
    session.flush()


def transfer(session: Session, way: Way) -> None:
    half(session, 1, -10)
    with contextlib.suppress(DBAPIError):
        way(session)
    session.get_one(Account, 2).balance += 10


def unit(engine: Engine, way: Way) -> None:
    with UnitOfWork(engine) as session:
        transfer(session, way)


def watched_session(engine: Engine, way: Way) -> None:
    with watch(sessionmaker(engine)).begin() as session:
        transfer(session, way)


def savepoint(engine: Engine, way: Way) -> None:
    """The way is inside of it, and both halves are outside."""

    def inside(session: Session) -> None:
        with session.begin_nested():
            way(session)

    with UnitOfWork(engine) as session:
        transfer(session, inside)


def inner_unit(engine: Engine, way: Way) -> None:
    sessions = sessionmaker(engine)
    with UnitOfWork(sessions) as session:
        half(session, 1, -10)
        with (
            contextlib.suppress(DBAPIError, OptilockError),
            UnitOfWork(sessions, propagation="savepoint"),
        ):
            way(session)
        session.get_one(Account, 2).balance += 10


def keyed(engine: Engine, way: Way) -> None:
    with UnitOfWork(engine, exactly_once="transfer") as session:
        transfer(session, way)


def pipelined(engine: Engine, way: Way) -> None:
    with UnitOfWork(engine, pipelined=True) as session:
        transfer(session, way)


def worker(engine: Engine, way: Way) -> None:
    """The message is deleted with the first half: a COMMIT of the handler's own stores that."""

    def handle(message: Message, session: Session) -> None:
        transfer(session, way)

    with Queue(engine, "work", max_receives=1) as queue:
        queue.send("transfer")
        with Running(queue.worker(handle, sessions=sessionmaker(engine))):
            until(lambda: not left(queue))
    if balances(engine) != (-10, 10):
        raise TransactionEnded("the handler has failed")


RUNS = [unit, watched_session, savepoint, inner_unit, keyed, worker]


@pytest.fixture
def bank(engine: Engine, tables: Any) -> Iterator[Engine]:
    for metadata in (Account.__table__, commit_tokens):
        metadata.create(engine)
    message_tables().messages.metadata.create_all(engine)
    with engine.begin() as connection:
        for sql in PREPARE[engine.dialect.name]:
            connection.exec_driver_sql(sql)
    yield engine
    _drop_procedures(engine)


def _drop_procedures(engine: Engine) -> None:
    if engine.dialect.name == "mysql":
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP PROCEDURE commits")
            connection.exec_driver_sql("DROP PROCEDURE goes_on")


def balances(engine: Engine) -> tuple[int, ...]:
    with engine.connect() as connection:
        return tuple(connection.scalars(BALANCES))


def tried(engine: Engine, name: str, run: Callable[[Engine, Way], None]) -> str | None:
    """Return what is wrong with one cell of the table."""
    way, may_be_stored = WAYS[engine.dialect.name][name]
    with engine.begin() as connection:
        for table in (Account.__table__, commit_tokens, message_tables().messages):
            connection.execute(table.delete())
        connection.exec_driver_sql("DROP TABLE IF EXISTS made_inside")
    with Session(engine) as session, session.begin():
        session.add_all([Account(id=1, balance=0), Account(id=2, balance=0)])
    try:
        run(engine, way)
    except (TransactionEnded, DBAPIError):
        right = [(0, 0), (-10, 0)] if may_be_stored else [(0, 0)]
    else:
        undone_alone = run in (savepoint, inner_unit) and name.startswith("failed")
        right = [(-10, 10)] if undone_alone else []
    found = balances(engine)
    return None if found in right else f"{run.__name__}: {found}"


@pytest.mark.parametrize("name", CASES)
def test_the_second_half_is_never_stored(bank: Engine, name: str) -> None:
    runs = [*RUNS, *([pipelined] if bank.dialect.driver == "psycopg" else [])]
    assert [wrong for run in runs if (wrong := tried(bank, name, run))] == []


async def async_unit(engine: AsyncEngine, way: Way) -> None:
    async with AsyncUnitOfWork(engine) as session:
        await session.run_sync(transfer, way)


async def async_session(engine: AsyncEngine, way: Way) -> None:
    async with watch(async_sessionmaker(engine)).begin() as session:
        await session.run_sync(transfer, way)


@pytest.mark.anyio
async def test_nor_in_async_units_and_sessions(async_engine: AsyncEngine) -> None:
    database = async_engine.dialect.name
    async with async_engine.begin() as connection:
        await connection.run_sync(Account.__table__.create)
        for sql in PREPARE[database]:
            await connection.exec_driver_sql(sql)
    wrong = []
    for name, (way, may_be_stored) in WAYS[database].items():
        for run in (async_unit, async_session):
            async with async_engine.begin() as connection:
                await connection.exec_driver_sql("DROP TABLE IF EXISTS made_inside")
                await connection.execute(Account.__table__.delete())
                rows = [{"id": 1, "balance": 0}, {"id": 2, "balance": 0}]
                await connection.execute(Account.__table__.insert(), rows)
            with contextlib.suppress(TransactionEnded, DBAPIError):
                await run(async_engine, way)
            async with async_engine.connect() as connection:
                found = tuple(await connection.scalars(BALANCES))
            if found != (0, 0) and not (may_be_stored and found == (-10, 0)):
                wrong.append((name, run.__name__, found))
    async with async_engine.connect() as connection:
        await connection.run_sync(lambda sync: _drop_procedures(sync.engine))
    await async_engine.dispose()
    assert wrong == []


#: As another transaction's change would raise it.
CONFLICT = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'moved' USING ERRCODE = '40001'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
}


@pytest.mark.parametrize("then", ["nothing", "a statement"])
@pytest.mark.engines("postgresql", "mariadb")
def test_the_first_cause_is_judged_and_the_unit_runs_again(bank: Engine, then: str) -> None:
    """The server's answer to the next statement (25P02 of PostgreSQL) does not show it."""
    runs = []
    with Session(bank) as session, session.begin():
        session.add(Account(id=1, balance=0))

    @unit_of_work(bank, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        runs.append(1)
        half(session, 1, -10)
        if len(runs) == 1:
            with contextlib.suppress(DBAPIError):
                session.execute(text(CONFLICT[bank.dialect.name]))
            if then == "a statement":
                session.execute(text("SELECT 1"))

    work()
    assert (len(runs), balances(bank)) == (2, (-10,))


@pytest.mark.engines(*ENGINES)
def test_the_error_names_who_has_ended_it_and_can_be_sent(bank: Engine) -> None:
    refused = pytest.raises(TransactionEnded, match=r"of the program has ended it \(COMMIT\)")
    with refused as caught, UnitOfWork(bank) as session:
        session.add(Account(id=1))
        session.flush()
        session.execute(text("COMMIT"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), is_transient(copy)) == (str(caught.value), False)
    assert isinstance(copy, OptilockError)


@pytest.mark.engines(*ENGINES)
def test_the_session_goes_on_after_a_rollback(bank: Engine) -> None:
    with watch(sessionmaker(bank))() as session:
        for _ in range(2):
            session.add(Account(id=1))
            session.flush()
            session.execute(text("ROLLBACK"))
            for act in (lambda: session.execute(text("SELECT 1")), session.commit):
                with pytest.raises(TransactionEnded):
                    act()
            session.rollback()
        session.add(Account(id=2, balance=7))
        session.commit()
    assert balances(bank) == (7,)


@pytest.mark.engines("sqlite-wal")
def test_no_statement_is_added_where_nothing_ends(bank: Engine) -> None:
    """Not even one that SQLAlchemy does not see, unless the program has the connection."""
    for shares, added in ((False, []), (True, ["SAVEPOINT optilock_whole", "RELEASE SAVEPOINT"])):
        sent: list[str] = []
        with UnitOfWork(bank) as session:
            driver = session.connection().connection.driver_connection if shares else None
            session.add(Account(id=1 + shares))
            session.flush()
            if driver is None:
                driver = record_of(session).connections[0].connection.driver_connection
            driver.set_trace_callback(sent.append)
        driver.set_trace_callback(None)
        kept = [one for one in sent if "optilock_whole" in one]
        assert (kept != []) == (added != []), sent


@pytest.mark.engines("sqlite-wal")
def test_a_savepoint_of_the_program_is_no_end(bank: Engine) -> None:
    """Rolling back to it takes our own savepoint away, which came later."""
    with UnitOfWork(bank) as session:
        session.add(Account(id=1))
        session.flush()
        session.execute(text("SAVEPOINT mine"))
        session.connection()
        session.execute(text("ROLLBACK TO SAVEPOINT mine"))
        session.add(Account(id=2))
    assert len(balances(bank)) == 2


@pytest.mark.parametrize(
    "on", [pytest.param(n, marks=pytest.mark.engines(n)) for n in ("postgresql", "mariadb")]
)
def test_a_savepoint_before_any_statement_goes_with_its_transaction(bank: Engine, on: str) -> None:
    """MariaDB begins no transaction for it."""
    with watch(sessionmaker(bank))() as session:
        session.begin_nested()
        session.execute(text("ROLLBACK"))
        with pytest.raises(TransactionEnded):
            session.scalars(select(Account)).all()
        session.rollback()
        session.begin_nested().commit()
        session.add(Account(id=1))
        session.commit()
    assert len(balances(bank)) == 1


@pytest.fixture(scope="module")
def timeouts_roll_back() -> Iterator[Engine]:
    """A server on which 1205 ends the whole transaction."""
    options = ("--innodb-rollback-on-timeout=ON", "--innodb-lock-wait-timeout=1")
    try:
        with mariadb(*options) as server:
            engine = create_engine(server.url)
            Account.__table__.create(engine)
            yield engine
            engine.dispose()
    except ServerMissing as error:
        skip_without("mariadb", error)


@pytest.mark.parametrize("run", [unit, watched_session, savepoint, inner_unit])
def test_a_lock_timeout_that_rolls_everything_back_ends_it(
    timeouts_roll_back: Engine, run: Callable[[Engine, Way], None]
) -> None:
    engine = timeouts_roll_back
    with engine.begin() as connection:
        connection.execute(Account.__table__.delete())
        rows = [{"id": 1, "balance": 0}, {"id": 2, "balance": 0}, {"id": 3, "balance": 0}]
        connection.execute(Account.__table__.insert(), rows)
    with engine.connect() as other, other.begin() as held:
        other.execute(text("SELECT * FROM accounts WHERE id = 3 FOR UPDATE"))
        with pytest.raises((TransactionEnded, DBAPIError)):
            run(engine, by("UPDATE accounts SET balance = 1 WHERE id = 3"))
        held.rollback()
    assert balances(engine) == (0, 0, 0)
    assert "rollback-on-timeout" in {finding.code for finding in check(Account, engine)}
