"""A unit does not wait for itself: a hot row changes nothing for a second session inside a unit."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import urlopen
from uuid import uuid4

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, retrying, unit_of_work, watch
from optilock.errors import SelfDeadlock
from optilock.tables.names import commit_tokens
from optilock.testing import count_statements
from optilock.unit import Adaptive, forget_hot_rows, reading
from optilock.unit.heat import MEMORY, Key
from optilock.unit.sessions import name_of
from tests.support.models import Account

pytestmark = pytest.mark.usually("postgresql", "mariadb", "sqlite-wal")

#: The row that the unit locks, without its version: the unit has no conflict.
NOTE = text("UPDATE accounts SET note = 'seen' WHERE id = 1")
WORDS = ("FOR UPDATE", "FOR NO KEY UPDATE", "WHERE 0 = 1")

#: A test that waits for itself all the same ends soon.
LIMITS = {
    "postgresql": {"connect_args": {"options": "-c lock_timeout=200ms"}},
    "mariadb": {},
    "sqlite": {"connect_args": {"timeout": 0.1}},
}


@pytest.fixture
def patient(database, store):
    store(Account(id=1, balance=10))
    made = database.engine(**LIMITS[database.family])
    if database.family == "mariadb":

        @event.listens_for(made, "connect")
        def connect(connection, record):
            connection.cursor().execute("SET SESSION innodb_lock_wait_timeout = 1")

    yield made
    made.dispose()


@pytest.fixture
def sessions(patient):
    return sessionmaker(patient)


def heat(engine):
    key = Key(name_of(engine), "accounts", (1,))
    MEMORY.conflict(key, Adaptive(), "the test says so")
    MEMORY.rows[key].left = 1_000_000


def locking(sent):
    return [one.text for one in sent.statements if any(word in one.text for word in WORDS)]


def in_a_unit(engine):
    @unit_of_work(sessionmaker(engine), propagation="independent")
    def note(session):
        session.execute(NOTE)

    note()


def in_a_session(make):
    def note(engine):
        with make(sessionmaker(engine)).begin() as session:
            session.execute(NOTE)

    return note


def on_a_connection(engine):
    with engine.begin() as connection:
        connection.execute(NOTE)


def in_a_scope(engine):
    session = scoped_session(sessionmaker(engine))
    try:
        session.execute(NOTE)
        session.commit()
    finally:
        session.remove()


WAYS = {
    "unit": in_a_unit,
    "session": in_a_session(lambda sessions: sessions),
    "watched": in_a_session(watch),
    "connection": on_a_connection,
    "scoped": in_a_scope,
}


def working(sessions, second, engine, **options):
    """A unit that adds one, with a second session between its read and its write."""

    @unit_of_work(sessions, **options)
    def work(session):
        account = session.get_one(Account, 1)
        second(engine)
        account.balance += 1

    return work


@pytest.mark.parametrize("way", WAYS)
def test_the_unit_does_without_the_lock_from_the_first_time_on(
    way, patient, sessions, retried, stored
):
    heat(patient)
    work = working(
        sessions, WAYS[way], patient, retry=retrying(on=OSError)
    )  # whatever is run again otherwise
    work()
    (error,) = retried
    assert isinstance(error, SelfDeadlock)
    assert error.holder == "the unit work()"
    assert error.waiter == ("the unit note()" if way == "unit" else "another session")
    assert error.waiter in str(error)
    assert pickle.loads(pickle.dumps(error)).holder == error.holder
    with count_statements(patient) as sent:
        work()
    assert not locking(sent)
    assert len(retried) == 1
    assert stored(Account, 1)["balance"] == 12
    assert stored(Account, 1)["note"] == "seen"


def test_it_is_found_on_another_engine_and_on_a_connection_from_before(
    database, patient, sessions, retried, stored
):
    other = database.engine(**LIMITS[database.family])
    before = Session(patient)
    before.connection()

    def note(engine):
        before.execute(NOTE)
        before.commit()
        on_a_connection(other)

    heat(patient)
    working(sessions, note, patient)()
    before.close()
    other.dispose()
    assert [type(error) for error in retried] == [SelfDeadlock]
    assert stored(Account, 1)["balance"] == 11


@pytest.mark.parametrize("then", ["swallows it", "raises another one"])
def test_what_the_program_makes_of_the_error_does_not_count(then, patient, sessions, stored):
    def note(engine):
        try:
            on_a_connection(engine)
        except SelfDeadlock as error:
            if then != "swallows it":
                raise ValueError("the note failed") from error

    heat(patient)
    working(sessions, note, patient)()
    assert stored(Account, 1)["balance"] == 11
    assert stored(Account, 1)["note"] == "seen"


@pytest.mark.parametrize("seen", ["in the first attempt", "in the second one alone"])
def test_the_locks_of_a_failed_attempt_do_not_go_on(
    seen, patient, sessions, other, stored, retried
):
    """The next attempt would begin in the same transaction, and with its locks."""
    attempts = []

    @unit_of_work(sessions)
    def work(session):
        attempts.append(session)
        if len(attempts) == 2 or seen == "in the first attempt":
            on_a_connection(patient)
        account = session.get_one(Account, 1)
        if len(attempts) == 1:
            other(Account, 1, balance=20)
        account.balance += 1

    work()
    kept = patient.dialect.name != "mysql"  # its transaction would read the old snapshot
    assert [type(error) for error in retried] == [ConcurrencyError, SelfDeadlock][: 1 + kept]
    assert stored(Account, 1)["balance"] == 21


def test_reads_of_the_unit_on_its_own_connection_are_no_second_session(patient, sessions, retried):
    heat(patient)

    @unit_of_work(sessions)
    def work(session):
        account = session.get_one(Account, 1)
        with Session(session.connection()) as inner:
            inner.execute(NOTE)
        account.balance += 1

    work()
    assert not retried
    assert not MEMORY.accompanied


@pytest.mark.parametrize("level", ["default", "SERIALIZABLE"])
def test_a_read_of_a_second_session_is_refused_only_if_it_waits(
    level, database, patient, sessions, retried
):
    options = {} if level == "default" else {"isolation_level": level}
    other = database.engine(**LIMITS[database.family], **options)

    def read(engine):
        with other.connect() as connection:
            connection.execute(select(Account.balance)).all()

    heat(patient)
    working(sessions, read, patient)()
    other.dispose()
    waits = (database.family, level) == ("mariadb", "SERIALIZABLE")
    assert [type(error) for error in retried] == [SelfDeadlock] * waits


def test_a_session_after_the_unit_is_outside_of_it(patient, sessions, retried):
    heat(patient)

    @unit_of_work(sessions)
    def work(session):
        session.get_one(Account, 1).balance += 1
        event.listen(session, "after_commit", lambda _: on_a_connection(patient), once=True)

    work()
    on_a_connection(patient)
    assert not retried
    assert not MEMORY.accompanied


def test_a_block_that_cannot_run_again_ends_in_the_error(patient, sessions):
    heat(patient)
    with (
        pytest.raises(SelfDeadlock),
        UnitOfWork(sessions, strategy="adaptive") as session,
    ):
        session.get_one(Account, 1).balance += 1
        on_a_connection(patient)


# -- threads and tasks with a copy of the context --------------------------------------------------


@pytest.mark.anyio
@pytest.mark.needs("row-locks")
@pytest.mark.parametrize("way", ["gather", "to_thread", "run_in_executor"])
async def test_child_tasks_and_threads_are_inside(async_engine, way, retried, async_tables):
    """Threads of an executor are not, without a copy of the context: the server ends that wait."""
    async_tables(Account)
    limit_no_pause(async_engine.sync_engine)
    await async_engine.dispose()
    sessions = async_sessionmaker(async_engine)
    async with sessions.begin() as session:
        session.add(Account(id=1, balance=10))
    heat(async_engine.sync_engine)

    async def note():
        async with async_engine.begin() as connection:
            await connection.execute(NOTE)

    @unit_of_work(sessions)
    async def work(session):
        account = await session.get_one(Account, 1)
        if way == "gather":
            await asyncio.gather(note())
        elif way == "to_thread":
            await asyncio.to_thread(asyncio.run, note_alone())
        else:
            await asyncio.get_running_loop().run_in_executor(None, asyncio.run, note_alone())
        account.balance += 1

    async def note_alone():
        engine = create_async_engine(async_engine.url)
        try:
            async with engine.begin() as connection:
                await connection.execute(NOTE)
        finally:
            await engine.dispose()

    await work()
    (error,) = retried
    assert isinstance(error, DBAPIError if way == "run_in_executor" else SelfDeadlock)
    async with sessions() as session:
        assert (await session.get_one(Account, 1)).balance == 11


# -- sessions that are not seen: without the context, without SQLAlchemy, in another program -------


def limit_no_pause(engine):
    """Let connections be as those of an application that has set no limit of its own."""
    name, _ = PAUSES["postgresql" if engine.dialect.name == "postgresql" else "mariadb"]

    @event.listens_for(engine, "connect")
    def connect(connection, record):
        connection.cursor().execute(f"SET SESSION {name} = 0")
        connection.commit()


#: The setting that ends a pause, and the value that a learned lock gives it.
PAUSES = {
    "postgresql": ("idle_in_transaction_session_timeout", "900ms"),
    "mariadb": ("idle_transaction_timeout", 1),
}


@pytest.fixture
def alone():
    """A thread that has no context of the unit."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


@pytest.fixture
def address(engine):
    """A server of the application itself, which writes when it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            on_a_connection(engine)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def with_the_driver(engine):
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(str(NOTE))
        connection.commit()
    finally:
        connection.close()


def in_a_generator(engine):
    def steps():
        with Session(engine) as session:
            session.execute(NOTE)
            yield
            session.commit()

    list(steps())


def by_itself(engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(NOTE)


def with_a_key(engine):
    with UnitOfWork(
        sessionmaker(engine), exactly_once=str(uuid4()), propagation="independent"
    ) as session:
        session.execute(NOTE)


def in_a_pipeline(engine):
    with UnitOfWork(sessionmaker(engine), pipelined=True, propagation="independent") as session:
        session.execute(NOTE)


SEEN = {
    **WAYS,
    "generator": in_a_generator,
    "autocommit": by_itself,
    "key": with_a_key,
    "pipelined": in_a_pipeline,
}
#: Many seconds, for tests whose waits must end sooner.
LONG = {
    "postgresql": "SET lock_timeout = '20s'",
    "mariadb": "SET innodb_lock_wait_timeout = 20",
}


@pytest.mark.needs("row-locks")
@pytest.mark.engines("postgresql", "mariadb")
def test_every_program_that_ends_while_its_row_is_cold_ends_when_it_is_hot(
    database, store, stored, alone, address, retried
):
    store(Account(id=1, balance=10))
    made = database.engine()
    limit_no_pause(made)
    commit_tokens.metadata.create_all(made)

    @event.listens_for(made, "connect")
    def connect(connection, record):
        connection.cursor().execute(LONG[database.family])

    unseen = {
        "thread": lambda engine: alone.submit(on_a_connection, engine).result(),
        "driver": with_the_driver,
        "HTTP": lambda _: urlopen(address).read(),
    }
    ended = {}
    for name, second in (SEEN | unseen).items():
        for temperature in ("cold", "hot", "hot again"):
            forget_hot_rows() if temperature == "cold" else heat(made)
            retried.clear()
            work = working(sessionmaker(made), second, made)
            with count_statements(made) as sent:
                work()
            errors = ["seen" if isinstance(error, SelfDeadlock) else "ended" for error in retried]
            ended[name, temperature] = (errors, bool(locking(sent)))
    made.dispose()
    for name in SEEN | unseen:
        assert ended[name, "cold"] == ended[name, "hot again"] == ([], False)
        assert ended[name, "hot"] == (["seen" if name in SEEN else "ended"], True)
    assert stored(Account, 1)["balance"] == 10 + len(ended)


@pytest.mark.engines("postgresql")
def test_a_server_that_goes_away_is_no_pause(engine, store, stored, retried, monkeypatch):
    """It goes away while the lock is waited for, and units go on to lock the row."""
    store(Account(id=1, balance=10))
    monkeypatch.setattr(reading, "LONGEST_PAUSE", 0)

    @unit_of_work(sessionmaker(engine))
    def work(session):
        if not retried:
            session.connection().connection.driver_connection.pgconn.finish()
        session.get_one(Account, 1).balance += 1

    heat(engine)
    work()
    assert [error.connection_invalidated for error in retried] == [True]
    assert not MEMORY.accompanied
    assert stored(Account, 1)["balance"] == 11


@pytest.mark.engines("postgresql")
def test_a_pause_ends_the_learned_lock_of_a_pipelined_unit(database, store, stored, alone, retried):
    store(Account(id=1, balance=10))
    engine = database.engine()
    limit_no_pause(engine)

    @unit_of_work(sessionmaker(engine), pipelined=True)
    def work(session):
        account = session.get_one(Account, 1)
        alone.submit(on_a_connection, engine).result()
        account.balance += 1

    heat(engine)
    work()
    engine.dispose()
    assert [error.orig.sqlstate for error in retried] == ["25P03"]
    assert stored(Account, 1)["balance"] == 11


@pytest.mark.parametrize("own", [None, "1h"])
@pytest.mark.engines("postgresql", "mariadb")
def test_a_limit_of_the_application_stays(own, database, store):
    store(Account(id=1, balance=10))
    name, ours = PAUSES[database.family]
    given = {"1h": "'1h'" if database.family == "postgresql" else "3600"}.get(own)
    made, found = database.engine(), []
    limit_no_pause(made)
    if given is not None:

        @event.listens_for(made, "connect")
        def connect(connection, record):
            connection.cursor().execute(f"SET SESSION {name} = {given}")
            connection.commit()

    heat(made)
    show = text(f"SHOW {name}" if database.family == "postgresql" else f"SELECT @@{name}")

    @unit_of_work(sessionmaker(made))
    def work(session, fails):
        found.append(session.scalar(show))
        session.get_one(Account, 1).balance += 1
        found.append(session.scalar(show))
        if fails:
            raise ValueError("the work fails")

    work(fails=False)
    with pytest.raises(ValueError, match="work fails"), count_statements(made) as sent:
        work(fails=True)
    assert len(locking(sent)) == 1
    with made.connect() as connection:
        found.append(connection.scalar(show))
    made.dispose()
    free, kept = ("0", "1h") if database.family == "postgresql" else (0, 3600)
    assert found == ([free, ours] * 2 + [free] if own is None else [kept] * 5)


@pytest.mark.engines("mariadb")
def test_the_limit_costs_no_round_trip(engine, store):
    store(Account(id=1, balance=10))

    @unit_of_work(sessionmaker(engine))
    def work(session):
        session.get_one(Account, 1).balance += 1

    work()
    trips = {}
    for temperature in ("cold", "hot"):
        forget_hot_rows() if temperature == "cold" else heat(engine)
        with engine.connect() as connection:
            before = asked(connection)
        work()
        with engine.connect() as connection:
            trips[temperature] = asked(connection) - before
    assert trips["hot"] == trips["cold"]


def asked(connection):
    """The number of questions of this connection to its server."""
    return int(connection.execute(text("SHOW SESSION STATUS LIKE 'Questions'")).one()[1])
