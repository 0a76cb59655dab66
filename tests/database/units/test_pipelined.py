"""Pipelined units of work: trips, refusals, lost connections, tasks that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, make_url, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    Isolation,
    OptilockError,
    UnitOfWork,
    client_wins,
    retrying,
    serializable,
    unit_of_work,
)
from optilock.dialects.residue import Residue, residue_of
from optilock.dialects.transient import is_transient
from optilock.errors import CommitOutcomeUnknown
from optilock.testing import Wire
from optilock.unit.round_trips import trip_time_of
from tests.support.cut_line import Cut as Cut
from tests.support.cut_line import cut as cut
from tests.support.models import Account
from tests.support.needed import two_phases
from tests.support.waiting import turn, until_a_lock_is_waited_for

pytestmark = pytest.mark.engines("postgresql")

UNPREPARED = {"prepare_threshold": None}


@pytest.fixture
def far(line: Wire) -> Iterator[Engine]:
    engine = create_engine(line.url, connect_args=UNPREPARED)
    engine.connect().close()
    yield engine
    engine.dispose()


def rename(session: Session, key: int = 1, owner: str = "Eve") -> None:
    session.get_one(Account, key).owner = owner


def owner(engine: Engine, key: int = 1) -> str:
    with engine.connect() as connection:
        return connection.scalar(select(Account.owner).where(Account.id == key))


def driver_of(session: Session):
    return session.connection().connection.driver_connection


# -- trips -----------------------------------------------------------------------------------------


def test_a_decorated_unit_takes_two_trips(account, line, far) -> None:
    @unit_of_work(far, pipelined=True)
    def work(session: Session) -> None:
        rename(session)

    with line.counting() as trips:
        work()
    assert trips.count == 2


def test_the_last_writes_of_many_rows_go_along_with_commit(store, line, far) -> None:
    keys = range(1, 4)
    store(*(Account(id=key) for key in keys))
    with line.counting() as trips, UnitOfWork(far, pipelined=True) as session:
        for found in session.scalars(select(Account).order_by(Account.id)):
            found.owner = f"Eve {found.id}"
    assert trips.count == 2
    assert [owner(far, key) for key in keys] == ["Eve 1", "Eve 2", "Eve 3"]


def test_a_unit_of_statements_that_are_prepared_takes_two_trips(account, line, database) -> None:
    engine = create_engine(line.url)
    for number in range(12):
        with line.counting() as trips, UnitOfWork(engine, pipelined=True) as session:
            rename(session, owner=f"Eve {number}")
    assert trips.count == 2
    assert owner(engine) == "Eve 11"
    engine.dispose()


def test_a_second_attempt_is_pipelined_too(account, line, far, other) -> None:
    tries = []

    @unit_of_work(far, pipelined=True, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        rename(session)
        if not tries:
            other(Account, 1, balance=5)
        tries.append(session)

    with line.counting() as trips:
        work()
    assert (len(tries), trips.count) == (2, 5 + 2)


def test_a_level_by_name_can_be_pipelined(account, line, far) -> None:
    with line.counting() as trips, serializable(far, pipelined=True) as session:
        rename(session)
        level = session.connection().exec_driver_sql("SHOW transaction_isolation").scalar()
    assert level == "serializable"
    assert trips.count == 5


def test_a_joined_unit_ends_with_the_outer_one(account, line, far) -> None:
    with line.counting() as trips, UnitOfWork(far, pipelined=True) as outer:
        rename(outer)
        with UnitOfWork(far, pipelined=True) as inner:
            inner.get_one(Account, 1).balance = 3
    assert trips.count == 2


def test_a_pipelined_unit_joins_one_that_is_not(account, line, far) -> None:
    with line.counting() as trips, UnitOfWork(far) as outer:
        with UnitOfWork(far, pipelined=True) as inner:
            rename(inner)
        assert outer is inner
    assert trips.count == 4


def test_two_engines_save_a_trip_each(account, line, far, database, tables) -> None:
    second = create_engine(line.url, connect_args=UNPREPARED)
    second.connect().close()
    from tests.support.models import Note

    tables(Note)
    with Session(far) as session, session.begin():
        session.add(Note(id=1))
    counts = []
    for pipelined in (False, True):
        sessions = sessionmaker(binds={Account: far, Note: second})
        with line.counting() as trips, UnitOfWork(sessions, pipelined=pipelined) as session:
            session.get_one(Note, 1).text = f"{pipelined}"
            rename(session, owner=f"{pipelined}")
        counts.append(trips.count)
    assert counts[1] <= counts[0] - 2
    second.dispose()


def test_in_two_phases_nothing_changes(account, far) -> None:
    two_phases(far)
    with UnitOfWork(sessionmaker(far, twophase=True), pipelined=True) as session:
        rename(session)
    assert owner(far) == "Eve"


def test_a_transaction_that_a_listener_began_goes_on(account, line, far) -> None:
    sessions = sessionmaker(far)

    @event.listens_for(sessions, "after_begin")
    def after_begin(session, transaction, connection) -> None:
        connection.execute(text("SET LOCAL application_name = 'ours'"))

    with line.counting() as trips, UnitOfWork(sessions, pipelined=True) as session:
        rename(session)
        assert session.execute(text("SHOW application_name")).scalar() == "ours"
    assert trips.count == 6
    assert owner(far) == "Eve"


def test_a_connection_of_the_callers_is_left_open(account, far, engine) -> None:
    with far.connect() as connection, connection.begin() as transaction:
        sessions = sessionmaker(connection, join_transaction_mode="conditional_savepoint")
        with UnitOfWork(sessions, pipelined=True) as session:
            rename(session)
        transaction.rollback()
    assert owner(engine) == "Ada"


# -- what cannot be pipelined ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "postgresql+asyncpg://me@nowhere/db", "mysql+pymysql://me@nowhere/db"],
)
def test_the_log_says_once_that_another_driver_has_plain_units(caplog, url) -> None:
    engine = create_engine(url)
    assert [trip_time_of(engine) for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "plain units" in record.message
    assert make_url(url).get_driver_name() in record.message


@pytest.mark.anyio
async def test_so_it_does_for_async_units_which_are_stored(caplog, tmp_path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'plain.db'}")
    for _ in range(2):
        async with AsyncUnitOfWork(engine, pipelined=True) as session:
            await session.execute(text("CREATE TABLE IF NOT EXISTS made (id INTEGER)"))
            await session.execute(text("INSERT INTO made VALUES (1)"))
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM made")) == 2
    assert [one.message.split()[-1] for one in caplog.records] == ["aiosqlite"]
    await engine.dispose()


def test_an_engine_that_sends_no_rollback_has_plain_units(caplog, account, line) -> None:
    try:
        engine = create_engine(line.url, connect_args=UNPREPARED, skip_autocommit_rollback=True)
    except TypeError:
        pytest.skip("SQLAlchemy has no such option yet")
    engine.connect().close()
    with line.counting() as trips, UnitOfWork(engine, pipelined=True) as session:
        rename(session)
    assert trips.count == 4
    assert "skip_autocommit_rollback" in caplog.records[0].message
    engine.dispose()


# -- what becomes of the connection ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["stored", "raised", "wrong statement", "closed", "begun only"])
def test_the_pool_gets_the_connection_back_as_it_was(account, database, how) -> None:
    engine = create_engine(database.url, pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        before = driver.autocommit, driver.cursor_factory, driver.server_cursor_factory
    try:
        with UnitOfWork(engine, pipelined=True) as session:
            rename(session)
            if how == "begun only":
                session.rollback()
            elif how == "closed":
                session.close()
            elif how == "wrong statement":
                session.execute(text("SELECT nothing"))
            elif how == "raised":
                raise LookupError
    except (LookupError, DBAPIError, ConfigurationError):
        pass
    with engine.connect() as connection:
        again = connection.connection.driver_connection
        assert again is driver
        assert (again.autocommit, again.cursor_factory, again.server_cursor_factory) == before
        connection.execute(text("UPDATE accounts SET owner = 'lost'"))
    assert owner(engine) != "lost"
    engine.dispose()


def test_listeners_of_the_pool_may_send_statements(account, database) -> None:
    engine = create_engine(database.url)

    @event.listens_for(engine, "reset")
    def reset(dbapi_connection, record, state) -> None:
        if not state.terminate_only:
            dbapi_connection.rollback()
            dbapi_connection.execute("RESET ALL")
            dbapi_connection.rollback()

    for _ in range(2):
        with UnitOfWork(engine, pipelined=True) as session:
            rename(session)
    assert owner(engine) == "Eve"
    engine.dispose()


def test_an_applications_own_class_of_cursors_keeps_its_ways(account, line) -> None:
    engine = create_engine(line.url, connect_args={"cursor_factory": psycopg.ClientCursor})
    engine.connect().close()
    with line.counting() as trips, UnitOfWork(engine, pipelined=True) as session:
        assert isinstance(driver_of(session).cursor(), psycopg.ClientCursor)
        rename(session)
    assert trips.count == 2
    assert owner(engine) == "Eve"
    engine.dispose()


# -- the driver, used by hand ----------------------------------------------------------------------


def copied(driver) -> None:
    with driver.cursor().copy("COPY accounts (id, owner, balance, version) FROM STDIN") as copy:
        copy.write_row((7, "copied", 0, 1))


def many(driver) -> None:
    rows = [(7, "one"), (8, "two")]
    sql = "INSERT INTO accounts (id, owner, balance, version) VALUES (%s, %s, 0, 1)"
    driver.cursor().executemany(sql, rows)


def streamed(driver) -> None:
    assert len(list(driver.cursor().stream("SELECT id FROM accounts"))) == 2
    driver.execute("INSERT INTO accounts (id, balance, version) VALUES (7, 0, 1)")


def by_server(driver) -> None:
    with driver.cursor("named") as cursor:
        assert len(cursor.execute("SELECT id FROM accounts").fetchall()) == 2
    driver.execute("INSERT INTO accounts (id, balance, version) VALUES (7, 0, 1)")


@pytest.mark.parametrize("work", [copied, many, streamed, by_server])
@pytest.mark.parametrize("end", ["committed", "rolled back"])
def test_what_the_driver_sends_first_is_part_of_the_transaction(account, far, work, end) -> None:
    try:
        with UnitOfWork(far, pipelined=True) as session:
            work(driver_of(session))
            rename(session)
            if end == "rolled back":
                raise LookupError
    except LookupError:
        pass
    with far.connect() as connection:
        there = connection.scalar(text("SELECT count(*) FROM accounts WHERE id >= 7"))
    assert bool(there) is (end == "committed")
    assert owner(far) == ("Eve" if end == "committed" else "Ada")


@pytest.mark.anyio
async def test_what_an_async_driver_sends_first_is_part_of_the_transaction(account, line) -> None:
    engine = create_async_engine(line.url, connect_args=UNPREPARED)
    for end in ("rolled back", "committed"):
        try:
            async with AsyncUnitOfWork(engine, pipelined=True) as session:
                raw = await (await session.connection()).get_raw_connection()
                driver = raw.driver_connection
                statement = "COPY accounts (id, balance, version) FROM STDIN"
                async with driver.cursor().copy(statement) as copy:
                    await copy.write_row((7, 0, 1))
                async for _ in driver.cursor().stream("SELECT 1"):
                    pass
                async with driver.cursor("named") as cursor:
                    await cursor.execute("SELECT 1")
                (await session.get_one(Account, 1)).owner = "Eve"
                if end == "rolled back":
                    raise LookupError
        except LookupError:
            pass
        async with engine.connect() as connection:
            count = await connection.scalar(text("SELECT count(*) FROM accounts WHERE id = 7"))
        assert count == (end == "committed")
    await engine.dispose()


@pytest.mark.parametrize("first", ["stream", "copy"])
@pytest.mark.anyio
async def test_an_async_stream_or_copy_as_the_first_statement(account, line, first) -> None:
    engine = create_async_engine(line.url, connect_args=UNPREPARED)
    try:
        async with AsyncUnitOfWork(engine, pipelined=True) as session:
            raw = await (await session.connection()).get_raw_connection()
            driver = raw.driver_connection
            if first == "stream":
                async for _ in driver.cursor().stream("SELECT 1"):
                    pass
            else:
                async with driver.cursor().copy("COPY accounts TO STDOUT") as copy:
                    async for _ in copy.rows():
                        pass
            assert driver.info.transaction_status.name == "INTRANS"
            raise LookupError
    except LookupError:
        pass
    await engine.dispose()


def test_a_stream_of_rows_is_part_of_the_transaction(account, far) -> None:
    with UnitOfWork(far, pipelined=True) as session:
        query = select(Account).execution_options(yield_per=1).order_by(Account.id)
        for found in session.scalars(query):
            found.balance = 9
    with far.connect() as connection:
        assert connection.scalars(text("SELECT balance FROM accounts")).all() == [9, 9]


# -- errors ----------------------------------------------------------------------------------------


def test_a_statement_after_the_last_writes_is_refused_and_the_unit_is_stored(account, far) -> None:
    @event.listens_for(far, "do_execute")
    def do_execute(cursor, statement, parameters, context) -> bool:
        cursor.execute(statement, parameters)
        if "UPDATE" in statement:
            cursor.execute("INSERT INTO accounts (id, balance, version) VALUES (9, 0, 1)")
        return True

    unit = UnitOfWork(far, pipelined=True)
    with pytest.raises(OptilockError, match="the unit is stored") as raised, unit as session:
        rename(session)
    assert not is_transient(raised.value)
    assert owner(far) == "Eve"


def test_a_listener_that_fails_after_the_last_write_is_told_that_the_unit_is_stored(
    account, far
) -> None:
    @event.listens_for(far, "do_execute")
    def do_execute(cursor, statement, parameters, context) -> bool:
        cursor.execute(statement, parameters)
        if "UPDATE" in statement:
            raise StaleDataError("of another unit")
        return True

    @unit_of_work(sessionmaker(far), pipelined=True)
    def work(session) -> None:
        runs.append(session)
        rename(session)

    runs: list[Session] = []
    with pytest.raises(StaleDataError) as raised:
        work()
    assert owner(far) == "Eve"
    assert len(runs) == 1
    assert [note for note in raised.value.__notes__ if "the unit is stored" in note]


def test_a_value_that_cannot_be_sent_leaves_a_transaction_that_is_rolled_back(
    account, far, tables, store
) -> None:
    from tests.support.models import Note

    store(Note(id=1))
    unit = UnitOfWork(far, pipelined=True)
    with pytest.raises(DBAPIError), unit as session:
        note = session.get_one(Note, 1)
        rename(session)
        note.text = object()
    assert owner(far) == "Ada"
    with UnitOfWork(far, pipelined=True) as session:
        rename(session)
    assert owner(far) == "Eve"


@pytest.mark.parametrize("passes", [True, False])
def test_a_connection_lost_in_the_last_writes_is_an_unknown_outcome(account, cut, passes) -> None:
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    unit = UnitOfWork(engine, pipelined=True)
    with pytest.raises(CommitOutcomeUnknown) as raised, unit as session:
        rename(session)
        cut.at, cut.passes = b"COMMIT", passes
    assert isinstance(raised.value.__cause__, OperationalError)
    assert "pipelined=True" in str(raised.value)
    assert owner(engine) == ("Eve" if passes else "Ada")
    with UnitOfWork(engine, pipelined=True) as session:
        rename(session, owner="again")
    assert owner(engine) == "again"
    engine.dispose()


@pytest.mark.anyio
@pytest.mark.parametrize("passes", [True, False])
async def test_so_it_is_for_an_async_unit(account, engine, cut, passes) -> None:
    made = create_async_engine(cut.url, connect_args=UNPREPARED)
    with pytest.raises(CommitOutcomeUnknown):
        async with AsyncUnitOfWork(made, pipelined=True) as session:
            (await session.get_one(Account, 1)).owner = "Eve"
            cut.at, cut.passes = b"COMMIT", passes
    assert owner(engine) == ("Eve" if passes else "Ada")
    await made.dispose()


def test_a_connection_lost_with_the_first_statement_is_certain(account, cut) -> None:
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    engine.connect().close()
    unit = UnitOfWork(engine, pipelined=True)
    with pytest.raises(OperationalError) as raised, unit as session:
        cut.at = b"BEGIN"
        rename(session)
    assert is_transient(raised.value)
    engine.dispose()


def test_so_it_is_where_that_is_the_last_flush(account, cut) -> None:
    """It is sent inside of session.commit(), and COMMIT is not."""
    engine = create_engine(cut.url, connect_args=UNPREPARED)
    engine.connect().close()
    with pytest.raises(OperationalError), UnitOfWork(engine, pipelined=True) as session:
        session.connection()
        session.add(Account(id=9, owner="Eve", balance=1))
        cut.at = b"BEGIN"
    engine.dispose()


def test_a_connection_that_the_server_has_ended_before_is_certain(account, far, engine) -> None:
    """And so the unit runs again."""
    tries = []

    @unit_of_work(far, pipelined=True, retry=retrying(wait_initial=0))
    def work(session: Session) -> None:
        rename(session)
        tries.append(driver_of(session).info.backend_pid)
        if len(tries) == 1:
            with engine.begin() as connection:
                ask = text("SELECT pg_terminate_backend(:pid, 5000)")
                assert connection.scalar(ask, {"pid": tries[0]})

    work()
    assert len(tries) == 2
    assert owner(engine) == "Eve"


def test_a_refused_commit_is_no_unknown_outcome(account, far, engine) -> None:
    """Its error comes back along with the writes."""
    with engine.begin() as connection:
        connection.execute(text(_REFUSED_AT_COMMIT))
    unit = UnitOfWork(far, pipelined=True)
    with pytest.raises(DBAPIError, match="not today"), unit as session:
        rename(session)
    assert owner(engine) == "Ada"


_REFUSED_AT_COMMIT = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'not today'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON accounts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def test_a_trigger_that_prevents_the_write_is_told_as_ever(account, far, engine) -> None:
    from optilock.errors import NotWritten

    with engine.begin() as connection:
        connection.execute(text(_PREVENTED))
    unit = UnitOfWork(far, pipelined=True)
    with pytest.raises(NotWritten), unit as session:
        for found in session.scalars(select(Account)):
            found.owner = "Eve"
    assert owner(engine) == "Ada"


_PREVENTED = """
CREATE FUNCTION prevent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER prevent BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION prevent();
"""


def test_a_write_skew_at_the_end_is_a_conflict(account, far) -> None:
    from optilock import ConcurrencyError

    with (
        pytest.raises(ConcurrencyError),
        serializable(far, pipelined=True) as one,
        UnitOfWork(
            sessionmaker(far),
            isolation=Isolation.SERIALIZABLE,
            pipelined=True,
            propagation="independent",
        ) as two,
    ):
        balances = [sum(s.scalars(select(Account.balance)).all()) for s in (one, two)]
        two.get_one(Account, 2).balance = balances[1] + 1
        one.get_one(Account, 1).balance = balances[0] + 1


# -- tasks and locks -------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("step", range(0, 40, 3))
async def test_a_cancelled_task_gives_its_connection_back(account, line, engine, step) -> None:
    made = create_async_engine(line.url, connect_args=UNPREPARED, pool_size=1, max_overflow=0)

    async def work() -> None:
        async with AsyncUnitOfWork(made, pipelined=True) as session:
            (await session.get_one(Account, 1)).owner = "Eve"

    await (await made.connect()).close()
    task = asyncio.ensure_future(work())
    for _ in range(step):
        await turn()
    task.cancel()
    await asyncio.wait({task})
    assert made.pool.checkedout() == 0
    if not task.cancelled():
        assert owner(engine) == "Eve"
    await work()
    assert owner(engine) == "Eve"
    await made.dispose()


@pytest.mark.anyio
async def test_a_task_that_is_cancelled_in_the_last_writes_waits_for_them(
    account, line, engine
) -> None:
    made = create_async_engine(line.url, connect_args=UNPREPARED)
    changed = asyncio.Event()

    async def work() -> None:
        async with AsyncUnitOfWork(made, pipelined=True) as session:
            (await session.get_one(Account, 1)).owner = "Eve"
            changed.set()

    with engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM accounts WHERE id = 1 FOR UPDATE"))
        task = asyncio.ensure_future(work())
        await changed.wait()
        await asyncio.to_thread(until_a_lock_is_waited_for, engine)
        task.cancel()
        for _ in range(50):
            await turn()
        assert not task.done()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert any("committed" in note for note in raised.value.__notes__)
    assert owner(engine) == "Eve"
    await made.dispose()


LIMIT = text("SELECT current_setting('lock_timeout')")


@pytest.mark.anyio
@pytest.mark.parametrize(("given", "found"), [(None, "9999ms"), ("3s", "3s")])
async def test_an_async_unit_waits_so_long_for_a_lock(account, line, engine, given, found) -> None:
    with engine.begin() as connection:
        connection.execute(text(_LOOKING))
    made = create_async_engine(line.url, connect_args=UNPREPARED)
    async with AsyncUnitOfWork(made, pipelined=True) as session:
        if given is not None:
            await session.execute(text(f"SET LOCAL lock_timeout = '{given}'"))
        (await session.get_one(Account, 1)).owner = "Eve"
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT note FROM accounts WHERE id = 1")) == found
    async with made.connect() as connection:
        assert await connection.scalar(LIMIT) == "0"
    await made.dispose()


def test_a_unit_of_a_thread_waits_as_long_as_it_is_told(account, far, engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(_LOOKING))
    with UnitOfWork(far, pipelined=True) as session:
        rename(session)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT note FROM accounts WHERE id = 1")) == "0"


_LOOKING = """
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN NEW.note = current_setting('lock_timeout'); RETURN NEW; END $$;
CREATE TRIGGER look BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION look();
"""


# -- which statements leave nothing behind ---------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        ("SELECT a.id AS a_id FROM a WHERE a.id = %(id)s::INTEGER", True),
        ("select a.x from a where (a.x = 1 OR a.y IN (1, 2)) AND a.format = 2", True),
        ("SELECT a.x FROM a JOIN (SELECT b.x AS x FROM b) AS c ON (c.x = a.x)", True),
        ("SELECT a.x FROM a FOR UPDATE", False),
        ("SELECT a.x INTO b FROM a", False),
        ("SELECT nextval('s')", False),
        ("SELECT a.x, count (*) FROM a", False),
        ('SELECT "Set"(1)', False),
        ("SELECT set_config/**/('a', 'b', true)", False),
        ("SELECT 1; DELETE FROM a", False),
        ("UPDATE a SET x = 1", False),
        ("WITH a AS (DELETE FROM b RETURNING 1) SELECT x FROM a", False),
        (" SELECT 1", False),
        (b"SELECT 1", False),
    ],
)
def test_a_plain_select_is_known_by_its_text(query, plain) -> None:
    assert (residue_of(query) is Residue.NOTHING) is plain


def test_a_miss_after_a_lock_keeps_the_lock(account, far, engine, other) -> None:
    """The resolver runs while the other row is still locked."""
    seen = []

    def resolver(entry):
        with engine.connect() as connection, connection.begin():
            ask = text("SELECT id FROM accounts WHERE id = 2 FOR UPDATE SKIP LOCKED")
            seen.append(connection.scalars(ask).all())
        return client_wins(entry)

    with UnitOfWork(far, pipelined=True, on_conflict=resolver) as session:
        session.get_one(Account, 2, with_for_update=True)
        rename(session)
        other(Account, 1, balance=50)
    assert seen == [[]]
    assert owner(engine) == "Eve"
