"""Which errors deserve another run: decided by the driver and its codes, here with values only.

The exceptions of drivers that are installed with the tests are real ones. Those of the others are
classes that stand in the driver's module and carry its attributes, as their documentation says.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InternalError,
    InvalidRequestError,
    OperationalError,
)
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm.exc import StaleDataError

from optilock.dialects import database_of_error
from optilock.dialects.causes import Cause
from optilock.dialects.transient import (
    cause_of,
    commit_outcome_unknown,
    ended_by_conflict,
    is_transient,
)
from optilock.errors import (
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
)
from tests.support.ids import told

UPDATE = "UPDATE t SET v = 2"


def driver_error(module: str, *args: object, **attributes: object) -> Exception:
    """An exception whose class stands in the module of a driver."""
    kind = type("Error", (Exception,), {"__module__": module})
    error: Exception = kind(*args)
    vars(error).update(attributes)
    return error


def wrapped(
    orig: BaseException, *, statement: str | None = UPDATE, lost: bool = False
) -> DBAPIError:
    """As SQLAlchemy wraps it; the class is of no account on purpose."""
    return DBAPIError(statement, None, orig, connection_invalidated=lost)


def at_commit(orig: BaseException, *, lost: bool = False) -> DBAPIError:
    """SQLAlchemy names no statement when COMMIT fails."""
    return wrapped(orig, statement=None, lost=lost)


def postgresql(sqlstate: str) -> Exception:
    return psycopg.errors.lookup(sqlstate)("text in any language")


def asyncpg(sqlstate: str) -> Exception:
    return driver_error("sqlalchemy.dialects.postgresql.asyncpg", "text", sqlstate=sqlstate)


#: The function of the server that finds that a prepared statement's table was altered (D4).
STALE = "RevalidateCachedQuery"
RAISED_IN = SimpleNamespace(source_function=STALE, server_source_function=STALE)


def cached_plan(module: str, **told: object) -> Exception:
    return driver_error(module, "text in any language", sqlstate="0A000", **told)


def mariadb(number: int) -> Exception:
    error: Exception = pymysql.err.OperationalError(number, "text in any language")
    return error


def sqlite(code: int) -> Exception:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


def oracle(code: int, full_code: str = "") -> Exception:
    detail = type("_Error", (), {"code": code, "full_code": full_code})()
    return driver_error("oracledb.exceptions", detail)


CAUSES: list[tuple[Exception, Cause]] = [
    (postgresql("40001"), Cause.CONFLICT),
    (postgresql("40P01"), Cause.DEADLOCK),
    (postgresql("55P03"), Cause.LOCK_TIMEOUT),
    (postgresql("57P01"), Cause.CONNECTION_LOST),
    (postgresql("57P02"), Cause.CONNECTION_LOST),
    (postgresql("25P03"), Cause.CONNECTION_LOST),
    (postgresql("08006"), Cause.CONNECTION_LOST),
    (postgresql("53300"), Cause.CONNECTION_LOST),
    (postgresql("28P01"), Cause.OTHER),
    (postgresql("3D000"), Cause.OTHER),
    (postgresql("08007"), Cause.UNKNOWN_OUTCOME),
    (postgresql("40003"), Cause.UNKNOWN_OUTCOME),
    (postgresql("57014"), Cause.OTHER),
    (postgresql("23505"), Cause.OTHER),
    (postgresql("25P02"), Cause.OTHER),
    (postgresql("25006"), Cause.OTHER),
    (postgresql("0A000"), Cause.OTHER),
    (cached_plan("psycopg.errors", diag=RAISED_IN), Cause.ALTERED_TABLE),
    (cached_plan("asyncpg.exceptions", **vars(RAISED_IN)), Cause.ALTERED_TABLE),
    (driver_error("pg8000.exceptions", {"C": "0A000", "R": STALE}), Cause.ALTERED_TABLE),
    (driver_error("pg8000.exceptions", {"C": "0A000", "R": "transformStmt"}), Cause.OTHER),
    (asyncpg("40001"), Cause.CONFLICT),
    (asyncpg("40P01"), Cause.DEADLOCK),
    (driver_error("psycopg2.errors", "text", pgcode="40001"), Cause.CONFLICT),
    (driver_error("psycopg2.errors", "change conflicts (OC000)", pgcode="40001"), Cause.CONFLICT),
    (driver_error("psycopg.errors", "schema has been updated", sqlstate="OC001"), Cause.CONFLICT),
    (driver_error("pg8000.exceptions", {"S": "ERROR", "C": "55P03"}), Cause.LOCK_TIMEOUT),
    (mariadb(1020), Cause.CONFLICT),
    (mariadb(1213), Cause.DEADLOCK),
    (mariadb(1205), Cause.LOCK_TIMEOUT),
    (mariadb(1412), Cause.ALTERED_TABLE),
    (mariadb(1615), Cause.ALTERED_TABLE),
    (mariadb(2006), Cause.CONNECTION_LOST),
    (mariadb(2013), Cause.CONNECTION_LOST),
    (mariadb(1040), Cause.CONNECTION_LOST),
    (mariadb(1203), Cause.CONNECTION_LOST),
    (mariadb(1045), Cause.OTHER),
    (mariadb(1180), Cause.UNKNOWN_OUTCOME),
    (mariadb(1047), Cause.CONNECTION_LOST),
    (mariadb(1062), Cause.OTHER),
    (driver_error("asyncmy.errors", 1020, "text"), Cause.CONFLICT),
    (driver_error("mysql.connector.errors", "text", errno=1213, sqlstate="40001"), Cause.DEADLOCK),
    (driver_error("mysql.connector.errors", "text", errno=-1), Cause.CONNECTION_LOST),
    (sqlite(517), Cause.CONFLICT),
    (sqlite(5), Cause.LOCK_TIMEOUT),
    (sqlite(261), Cause.LOCK_TIMEOUT),
    (sqlite(262), Cause.LOCK_TIMEOUT),
    (sqlite(6), Cause.OTHER),
    (sqlite(2067), Cause.OTHER),
    (driver_error("_duckdb", "TransactionContext Error: Conflict on update!"), Cause.CONFLICT),
    (
        driver_error("duckdb.duckdb", "TransactionContext Error: Conflict on tuple deletion!"),
        Cause.CONFLICT,
    ),
    (
        driver_error(
            "_duckdb",
            "TransactionContext Error: Failed to commit:"
            ' PRIMARY KEY or UNIQUE constraint violation: duplicate key "5"',
        ),
        Cause.CONFLICT,
    ),
    (
        driver_error("_duckdb", "Constraint Error: PRIMARY KEY or UNIQUE constraint violated"),
        Cause.OTHER,
    ),
    (
        driver_error("_duckdb", "TransactionContext Error: Current transaction is aborted"),
        Cause.OTHER,
    ),
    (
        driver_error("firebird.driver.types", "text", gds_codes=(335544336, 335544451, 335544878)),
        Cause.CONFLICT,
    ),
    (driver_error("firebird.driver.types", "text", gds_codes=(335544336,)), Cause.DEADLOCK),
    (
        driver_error("firebird.driver.types", "text", gds_codes=(335544345, 335544451)),
        Cause.LOCK_TIMEOUT,
    ),
    (driver_error("fdb.fbcore", "text", -913, 335544336), Cause.DEADLOCK),
    (driver_error("fdb.fbcore", "text", -913), Cause.CONFLICT),
    (oracle(8177, "ORA-08177"), Cause.CONFLICT),
    (oracle(60, "ORA-00060"), Cause.DEADLOCK),
    (oracle(54, "ORA-00054"), Cause.LOCK_TIMEOUT),
    (oracle(0, "DPY-4011"), Cause.CONNECTION_LOST),
    (oracle(1, "ORA-00001"), Cause.OTHER),
    (driver_error("pymssql.exceptions", 1205, b"text"), Cause.DEADLOCK),
    (driver_error("pymssql.exceptions", (3960, b"text")), Cause.CONFLICT),
    (driver_error("pyodbc", "42000", "[42000] text (3960) (SQLExecDirectW)"), Cause.CONFLICT),
    (driver_error("pyodbc", "40001", "[40001] text (1205) (SQLExecDirectW)"), Cause.DEADLOCK),
    (driver_error("pyodbc", "HYT00", "[HYT00] text (1222) (SQLExecDirectW)"), Cause.LOCK_TIMEOUT),
    (driver_error("pyodbc", "08S01", "[08S01] text (10054) (SQLEndTran)"), Cause.CONNECTION_LOST),
    (driver_error("new_driver.errors", "text", sqlstate="40001"), Cause.CONFLICT),
    (driver_error("new_driver.errors", "40001 deadlock, conflict, retry"), Cause.OTHER),
]


@pytest.mark.parametrize(
    ("orig", "cause"),
    CAUSES,
    ids=[told(f"{type(e).__module__}-{e}-{c.name}")[:80] for e, c in CAUSES],
)
def test_the_code_of_the_driver_names_the_cause(orig: Exception, cause: Cause) -> None:
    assert cause_of(wrapped(orig)) is cause


@pytest.mark.parametrize(("orig", "cause"), CAUSES)
def test_conflicts_deadlocks_lock_timeouts_and_lost_connections_deserve_another_run(
    orig: Exception, cause: Cause
) -> None:
    assert is_transient(wrapped(orig)) is (cause not in {Cause.OTHER, Cause.UNKNOWN_OUTCOME})


@pytest.mark.parametrize("wrapper", [DBAPIError, InternalError, OperationalError, IntegrityError])
def test_the_class_of_the_exception_does_not_count(wrapper: type[DBAPIError]) -> None:
    assert is_transient(wrapper(UPDATE, None, postgresql("40001")))
    assert not is_transient(wrapper(UPDATE, None, postgresql("23505")))


def test_the_text_does_not_count() -> None:
    error = pymysql.err.OperationalError(1062, "Deadlock found; could not serialize access; 1213")

    assert not is_transient(wrapped(error))


def test_a_code_is_read_as_the_code_of_its_own_engine() -> None:
    """MariaDB's 1205 is a lock timeout, SQL Server's a deadlock."""
    assert cause_of(wrapped(mariadb(1205))) is Cause.LOCK_TIMEOUT
    assert cause_of(wrapped(driver_error("pymssql", 1205, b""))) is Cause.DEADLOCK


def test_an_adapter_that_hides_the_code_has_the_drivers_error_as_its_cause() -> None:
    adapted = driver_error("sqlalchemy.dialects.postgresql.asyncpg", "text", sqlstate=None)
    adapted.__cause__ = driver_error("asyncpg.exceptions", "text", sqlstate="40001")

    assert ended_by_conflict(wrapped(adapted))


def test_the_number_of_an_error_of_the_operating_system_is_no_code_of_the_database() -> None:
    """A socket has numbers of its own."""
    lost = driver_error("pymysql.err", "no number here")
    lost.__cause__ = OSError(1213, "text")

    assert cause_of(wrapped(lost)) is Cause.OTHER


def test_a_class_derived_from_a_drivers_error_belongs_to_that_driver() -> None:
    class Mine(psycopg.errors.SerializationFailure):
        pass

    assert ended_by_conflict(wrapped(Mine("text")))


def test_an_invalidated_connection_without_a_code_is_a_lost_connection() -> None:
    error = wrapped(psycopg.OperationalError("server closed the connection"), lost=True)

    assert cause_of(error) is Cause.CONNECTION_LOST
    assert is_transient(error)


def out_of_connecting(orig: BaseException) -> BaseException:
    """What comes out of an engine whose driver raises it."""

    def connect() -> Any:
        raise orig

    engine = create_engine("postgresql+psycopg://", creator=connect)
    with pytest.raises(type(orig) if isinstance(orig, OSError) else DBAPIError) as raised:
        engine.connect()
    return raised.value


AT = 'connection to server at "10.0.0.7", port 5432 failed: '
CONNECTS = {
    f"connection failed: {AT}Connection refused\n\tIs the server running on that host": True,
    f"connection failed: {AT}server closed the connection unexpectedly": True,
    f"connection failed: {AT}session is read-only": True,
    "failed to resolve host 'db': [Errno -3] Temporary failure in name resolution": True,
    "connection timeout expired": True,
    f"connection failed: {AT}FATAL:  the database system is starting up": True,
    f"connection failed: {AT}FATAL:  the database system is shutting down": True,
    f"connection failed: {AT}FATAL:  the database system is not yet accepting connections": True,
    f"connection failed: {AT}FATAL:  sorry, too many clients already": True,
    f'connection failed: {AT}FATAL:  too many connections for role "ada"': True,
    f"connection failed: {AT}FATAL:  server login has been failing, try again later": True,
    f"connection failed: {AT}FATAL:  no such database: shop": False,
    f'connection failed: {AT}FATAL:  password authentication failed for user "ada"': False,
    f'connection failed: {AT}FATAL:  database "shop" does not exist': False,
    f"connection failed: {AT}FATAL\u00a0:  le r\u00f4le \u00ab ada \u00bb n'existe pas": False,
    f'connection failed: {AT}FATAL:  no pg_hba.conf entry for host "10.0.0.8"': False,
    "Multiple connection attempts failed. All failures were:\n"
    f"- host: a, port: 5432, hostaddr: 10.0.0.7: {AT}FATAL:  the database system is starting up\n"
    f'- host: b, port: 5432, hostaddr: 10.0.0.8: {AT}FATAL:  role "ada" does not exist': True,
    "Multiple connection attempts failed. All failures were:\n"
    f'- host: a, port: 5432, hostaddr: 10.0.0.7: {AT}FATAL:  role "ada" does not exist\n'
    f'- host: b, port: 5432, hostaddr: 10.0.0.8: {AT}FATAL:  role "ada" does not exist': False,
}


@pytest.mark.parametrize(("text", "passes"), CONNECTS.items(), ids=map(told, CONNECTS))
def test_a_connect_without_a_code_is_judged_by_what_the_server_has_answered(
    text: str, passes: bool
) -> None:
    error = out_of_connecting(psycopg.OperationalError(text))

    assert is_transient(error) is passes
    assert not commit_outcome_unknown(error)


def test_a_connect_that_the_caller_has_asked_for_wrongly_is_not_transient() -> None:
    assert not is_transient(out_of_connecting(psycopg.ProgrammingError("invalid option")))


def test_the_operating_systems_own_error_counts_where_a_connection_is_made_and_only_there() -> None:
    refused = ConnectionRefusedError(111, "Connect call failed")
    assert not is_transient(refused)
    assert commit_outcome_unknown(refused)

    error = out_of_connecting(refused)
    assert is_transient(error)
    assert not commit_outcome_unknown(error)


def test_the_text_of_a_refused_connect_does_not_count_anywhere_else() -> None:
    """It has no statement, as an error of COMMIT has none."""
    error = at_commit(psycopg.OperationalError(f"connection failed: {AT}Connection refused"))

    assert not is_transient(error)
    assert commit_outcome_unknown(error)


def test_a_refused_connection_with_a_code_is_transient() -> None:
    assert is_transient(at_commit(mariadb(2003)))


def test_a_connection_lost_without_a_statement_may_have_been_lost_in_commit() -> None:
    assert is_transient(wrapped(mariadb(2013), lost=True))
    assert not is_transient(at_commit(mariadb(2013), lost=True))


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ConcurrencyError(), True),
        (StaleDataError("UPDATE statement on table 't' expected to update 1 row(s); 0"), True),
        (PreconditionFailed(), False),
        (CommitOutcomeUnknown("text"), False),
        (ConfigurationError("text"), False),
        (InvalidRequestError("text"), False),
        (ValueError("40001"), False),
        (ConnectionResetError(), False),
        (asyncio.CancelledError(), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_other_errors_are_transient_only_when_they_are_conflicts(
    error: BaseException, transient: bool
) -> None:
    assert is_transient(error) is transient


def test_mariadbs_1213_is_a_deadlock_at_a_statement_and_a_conflict_at_commit() -> None:
    assert not ended_by_conflict(wrapped(mariadb(1213)))
    assert ended_by_conflict(at_commit(mariadb(1213)), at_commit=True)


def test_only_a_database_error_ends_by_conflict() -> None:
    assert not ended_by_conflict(ConcurrencyError())


UNKNOWN: list[tuple[BaseException, bool]] = [
    (at_commit(psycopg.OperationalError("server closed the connection"), lost=True), True),
    (at_commit(psycopg.OperationalError("no code, still connected?")), True),
    (at_commit(postgresql("57P01"), lost=True), True),
    (at_commit(postgresql("40003")), True),
    (at_commit(postgresql("08007")), True),
    (at_commit(postgresql("08006"), lost=True), True),
    (at_commit(mariadb(2013), lost=True), True),
    (at_commit(mariadb(2006), lost=True), True),
    (at_commit(mariadb(1180)), True),
    (at_commit(mariadb(1047)), True),
    # COMMIT is in a compound statement, which may be interrupted after it
    (at_commit(mariadb(1317)), True),
    (at_commit(mariadb(1969)), True),
    (at_commit(mariadb(3024)), True),
    (wrapped(mariadb(1317)), False),
    (at_commit(sqlite(10)), True),
    (at_commit(sqlite(1034)), True),
    (at_commit(driver_error("new_driver", "text")), True),
    (wrapped(postgresql("57P01"), statement="COMMIT PREPARED 'x'", lost=True), True),
    (asyncio.CancelledError(), True),
    (KeyboardInterrupt(), True),
    (TimeoutError(), True),
    (ConnectionResetError(), True),
    (at_commit(postgresql("40001")), False),
    (at_commit(postgresql("40P01")), False),
    (at_commit(postgresql("23505")), False),
    (at_commit(postgresql("25P03"), lost=True), False),
    (at_commit(mariadb(1213)), False),
    (at_commit(mariadb(1062)), False),
    (at_commit(sqlite(5)), False),
    (at_commit(sqlite(517)), False),
    (at_commit(sqlite(787)), False),
    (at_commit(driver_error("_duckdb", "TransactionContext Error: Failed to commit: x")), False),
    (IntegrityError(None, None, driver_error("new_driver", "text")), False),
    (wrapped(postgresql("57P01"), lost=True), False),
    (wrapped(mariadb(2013), statement="RELEASE SAVEPOINT sa_savepoint_1", lost=True), False),
    (ConcurrencyError(), False),
    (ValueError("raised by a hook before COMMIT"), False),
]


@pytest.mark.parametrize(("error", "unknown"), UNKNOWN)
def test_only_an_answer_of_the_database_makes_a_failed_commit_certain(
    error: BaseException, unknown: bool
) -> None:
    assert commit_outcome_unknown(error) is unknown


@pytest.mark.parametrize(
    "module", ["psycopg.errors", "sqlite3", "pymysql.err", "_duckdb", "oracledb.exceptions"]
)
def test_a_package_whose_name_only_begins_alike_is_another_driver(module: str) -> None:
    other = module.partition(".")[0] + "x"

    assert type(database_of_error(driver_error(module))) is not type(
        database_of_error(driver_error(other))
    )


class TestSQLiteItself:
    """Two connections to one file, the errors as the driver raises them."""

    @contextlib.contextmanager
    def engines(self, folder: Path, *, journal: str) -> Iterator[tuple[Engine, Engine]]:
        url = f"sqlite:///{folder / 'x.db'}"
        first, second = (create_engine(url, connect_args={"timeout": 0}) for _ in range(2))
        with first.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA journal_mode = {journal}")
            connection.exec_driver_sql("CREATE TABLE t (v INTEGER UNIQUE)")
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            connection.commit()
        yield first, second
        first.dispose()
        second.dispose()

    def test_a_write_over_an_old_snapshot_is_a_conflict(self, tmp_path: Path) -> None:
        with (
            self.engines(tmp_path, journal="WAL") as (first, second),
            first.connect() as mine,
            second.begin() as other,
        ):
            mine.exec_driver_sql("BEGIN")
            mine.exec_driver_sql("SELECT v FROM t").all()
            other.exec_driver_sql("UPDATE t SET v = 2")
            other.commit()
            with pytest.raises(OperationalError) as raised:
                mine.exec_driver_sql("UPDATE t SET v = 3")

        assert cause_of(raised.value) is Cause.CONFLICT

    def test_a_busy_database_is_a_lock_timeout(self, tmp_path: Path) -> None:
        with (
            self.engines(tmp_path, journal="DELETE") as (first, second),
            first.connect() as mine,
            second.connect() as other,
        ):
            other.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(OperationalError) as raised:
                mine.exec_driver_sql("UPDATE t SET v = 3")

        assert cause_of(raised.value) is Cause.LOCK_TIMEOUT

    def test_busy_at_commit_is_a_certain_rollback_and_transient(self, tmp_path: Path) -> None:
        """In rollback-journal mode a reader keeps COMMIT from its exclusive lock."""
        with (
            self.engines(tmp_path, journal="DELETE") as (first, second),
            first.connect() as mine,
            second.connect() as reader,
        ):
            mine.execute(text("UPDATE t SET v = 3"))
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT v FROM t").all()
            with pytest.raises(OperationalError) as raised:
                mine.commit()

        assert raised.value.statement is None
        assert not commit_outcome_unknown(raised.value)
        assert is_transient(raised.value)

    def test_a_unique_key_taken_is_neither(self, tmp_path: Path) -> None:
        with (
            self.engines(tmp_path, journal="WAL") as (first, _),
            first.connect() as mine,
            pytest.raises(IntegrityError) as raised,
        ):
            mine.exec_driver_sql("INSERT INTO t VALUES (1)")

        assert cause_of(raised.value) is Cause.OTHER

    def test_the_async_driver_raises_the_same_codes(self, tmp_path: Path) -> None:
        async def story() -> BaseException:
            url = f"sqlite+aiosqlite:///{tmp_path / 'x.db'}"
            engine = create_async_engine(url, connect_args={"timeout": 0})
            async with engine.connect() as mine, engine.connect() as other:
                await other.exec_driver_sql("CREATE TABLE t (v INTEGER)")
                await other.exec_driver_sql("BEGIN IMMEDIATE")
                with pytest.raises(OperationalError) as raised:
                    await mine.exec_driver_sql("INSERT INTO t VALUES (1)")
            await engine.dispose()
            return raised.value

        assert is_transient(asyncio.run(story()))
