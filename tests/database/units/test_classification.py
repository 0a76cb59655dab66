"""The errors that real drivers raise, on every engine: two connections stepped by hand.

What an engine cannot do (a deadlock on SQLite) is skipped with that reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from optilock.dialects.causes import Cause
from optilock.dialects.transient import (
    cause_of,
    commit_outcome_unknown,
    ended_by_conflict,
    is_transient,
)

pytestmark = pytest.mark.modes

READ = text("SELECT v FROM classified WHERE id = 1")
WRITE = text("UPDATE classified SET v = v + 1 WHERE id = :id")


@pytest.fixture
def table(engine: Engine) -> Iterator[Engine]:
    """Two rows, 1 and 2."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS classified"))
        connection.execute(
            text("CREATE TABLE classified (id INTEGER PRIMARY KEY, v INTEGER NOT NULL)")
        )
        connection.execute(text("INSERT INTO classified VALUES (1, 0), (2, 0)"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE classified"))


def fails(step: Callable[[], object]) -> DBAPIError:
    with pytest.raises(DBAPIError) as raised:
        step()
    return raised.value


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction whose reads stay as they were at the first of them."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection
        return
    level = engine.execution_options(isolation_level="REPEATABLE READ")
    with level.connect() as connection:
        if engine.dialect.name in ("mysql", "mariadb"):
            connection.exec_driver_sql("SET SESSION innodb_snapshot_isolation = ON")
        yield connection
        connection.rollback()
        connection.invalidate()


def be_impatient(connection: Connection) -> None:
    """Wait no second for a lock."""
    name = connection.dialect.name
    if name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
    elif name == "sqlite":
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    else:
        connection.exec_driver_sql("SET innodb_lock_wait_timeout = 0")


def kill(engine: Engine, victim: Connection) -> None:
    """End the connection from the server's side."""
    if engine.dialect.name == "postgresql":
        number = victim.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        order = f"SELECT pg_terminate_backend({number}, 5000)"
    else:
        number = victim.exec_driver_sql("SELECT connection_id()").scalar_one()
        order = f"KILL {number}"
    with engine.connect() as other:
        other.exec_driver_sql(order)


def needs_a_server(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("the database is a file: there is no server that could end a connection")


def test_a_write_over_a_row_that_has_moved_since_the_snapshot_is_a_conflict(table: Engine) -> None:
    if table.dialect.name == "sqlite" and not _is_wal(table):
        pytest.skip("a rollback journal has no snapshots: a reader keeps the writer out")
    with snapshot(table) as mine:
        mine.execute(READ).all()
        with table.begin() as other:
            other.execute(WRITE, {"id": 1})
        error = fails(lambda: mine.execute(WRITE, {"id": 1}))

    assert cause_of(error) is Cause.CONFLICT
    assert ended_by_conflict(error)
    assert is_transient(error)


def test_waiting_too_long_for_a_lock_is_a_lock_timeout(table: Engine) -> None:
    with table.connect() as mine, table.connect() as other:
        be_impatient(mine)
        other.execute(WRITE, {"id": 1})
        error = fails(lambda: mine.execute(WRITE, {"id": 1}))
        other.rollback()
        mine.rollback()
        mine.invalidate()

    assert cause_of(error) is Cause.LOCK_TIMEOUT
    assert is_transient(error)
    assert not ended_by_conflict(error)


def test_transactions_that_wait_for_each_other_are_a_deadlock(table: Engine) -> None:
    if table.dialect.name == "sqlite":
        pytest.skip("one writer at a time: nobody waits while holding a lock that others need")
    errors: list[DBAPIError] = []
    with table.connect() as mine, table.connect() as other:
        mine.execute(WRITE, {"id": 1})
        other.execute(WRITE, {"id": 2})

        def cross(connection: Connection, row: int) -> None:
            try:
                connection.execute(WRITE, {"id": row})
            except DBAPIError as error:
                errors.append(error)
            finally:
                connection.rollback()

        waiting = threading.Thread(target=cross, args=[other, 1])
        waiting.start()
        cross(mine, 2)
        waiting.join()

    assert [cause_of(error) for error in errors] == [Cause.DEADLOCK]
    assert is_transient(errors[0])


def test_a_connection_killed_before_a_statement_is_lost_and_transient(table: Engine) -> None:
    needs_a_server(table)
    with table.connect() as mine:
        mine.execute(WRITE, {"id": 1})
        kill(table, mine)
        error = fails(lambda: mine.execute(READ))

    assert cause_of(error) is Cause.CONNECTION_LOST
    assert is_transient(error)


def test_a_connection_lost_in_commit_is_unknown_and_not_transient(table: Engine) -> None:
    needs_a_server(table)
    with table.connect() as mine:
        mine.execute(WRITE, {"id": 1})
        kill(table, mine)
        error = fails(mine.commit)

    assert commit_outcome_unknown(error)
    assert not is_transient(error)


def test_a_key_that_is_taken_is_neither_a_conflict_nor_transient(table: Engine) -> None:
    with table.connect() as mine:
        error = fails(lambda: mine.execute(text("INSERT INTO classified VALUES (1, 1)")))

    assert cause_of(error) is Cause.OTHER
    assert not is_transient(error)


def test_two_serializable_transactions_that_read_what_the_other_writes_do_not_both_commit(
    table: Engine,
) -> None:
    """Write skew: PostgreSQL ends one at COMMIT or before it, with an answer."""
    if table.dialect.name != "postgresql":
        pytest.skip("it finds write skew without locks only where SERIALIZABLE is optimistic")
    level = table.execution_options(isolation_level="SERIALIZABLE")
    total = text("SELECT sum(v) FROM classified")
    with level.connect() as mine, level.connect() as other:
        mine.execute(total).all()
        other.execute(total).all()
        mine.execute(WRITE, {"id": 1})
        other.execute(WRITE, {"id": 2})
        mine.commit()
        error = fails(other.commit)

    assert ended_by_conflict(error, at_commit=True)
    assert not commit_outcome_unknown(error)
    assert is_transient(error)


def _is_wal(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal")
