"""Levels of isolation on SQLite, which has transactions that have begun and ones that have not."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import ref

import sqlalchemy as sa

from optilock.dialects.connections import undo_at_checkin
from optilock.dialects.isolation import IsolationLevels, Reach
from optilock.errors import ConfigurationError

#: In ``connection.info``: the file has a write-ahead log.
_WAL = "optilock.wal"


def in_transaction(connection: sa.Connection) -> bool:
    """Return whether a transaction has really begun."""
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))


def _has_wal(connection: sa.Connection) -> bool:
    info = connection.info
    if _WAL not in info:
        cursor = connection.connection.cursor()
        cursor.execute("PRAGMA journal_mode")
        info[_WAL] = str(cursor.fetchall()[0][0]).lower() == "wal"
        cursor.close()
    return bool(info[_WAL])


def _begin_nested(held: ref[sa.Connection]) -> sa.NestedTransaction:
    connection = held()
    assert connection is not None  # whose method it is
    _begin(connection)
    return type(connection).begin_nested(connection)


def _begin(connection: sa.Connection) -> None:
    if not in_transaction(connection):
        connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: sa.Connection) -> None:
    # A listener's or the driver's own BEGIN came first, and nothing has been done since.
    if in_transaction(connection):
        connection.dialect.do_rollback(connection.connection)
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _require_no_transaction(connection: sa.Connection) -> None:
    if in_transaction(connection):
        raise ConfigurationError(
            "READ COMMITTED on SQLite is the mode of the driver, where reads hold no snapshot;"
            " this engine begins a transaction by itself (an event listener, or the driver's"
            " autocommit=False): use Isolation.REPEATABLE_READ."
        )


class SQLiteIsolationLevels(IsolationLevels):
    def level_options(self, level: str) -> dict[str, Any]:
        """None: SQLite has transactions that have begun and ones that have not, and no levels."""
        return {}

    def begin_at(self, connection: sa.Connection, level: str, *, read_only: bool) -> None:
        """Send the BEGIN that the driver leaves out until the first write.

        A transaction that will write and must be serializable takes the write lock at once, and
        then never has to give up.
        """
        if level == "READ COMMITTED":
            _require_no_transaction(connection)
        elif level == "SERIALIZABLE" and not read_only:
            _begin_immediate(connection)
        else:
            _begin(connection)

    def take_snapshot(self, connection: sa.Connection, level: str, *, read_only: bool) -> None:
        """With a read: BEGIN alone reads nothing (https://sqlite.org/lang_transaction.html)."""
        if level == "REPEATABLE READ" or (level == "SERIALIZABLE" and read_only):
            connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1")

    def begin_read_only(self, connection: sa.Connection) -> None:
        if not connection.exec_driver_sql("PRAGMA query_only").scalar():
            connection.exec_driver_sql("PRAGMA query_only = ON")
            undo_at_checkin(connection, "PRAGMA query_only = OFF")

    def begin_savepoints(self, connection: sa.Connection) -> None:
        """Send BEGIN before the first savepoint.

        Outside a transaction SAVEPOINT begins one and its RELEASE commits it
        (https://sqlite.org/lang_savepoint.html); the driver sends BEGIN only before a write.

        The method is covered on the connection, as the guarded flush covers ``execute``: with a
        listener to its events every statement would look for listeners to all of them.
        """
        covered = partial(_begin_nested, ref(connection))  # no circle: it goes back to the pool
        setattr(connection, "begin_nested", covered)  # noqa: B010

    def reads_snapshot(self, connection: sa.Connection) -> bool:
        """Only after a real BEGIN: the driver sends none before the first write."""
        return in_transaction(connection)

    def shows_newest_after_miss(self, connection: sa.Connection) -> bool:
        """A write takes the lock of the file, which a transaction with an older snapshot cannot."""
        return True

    def reads_wait(self, connection: sa.Connection) -> bool:
        return False

    def reach(self, connection: sa.Connection) -> Reach:
        """Only a real BEGIN keeps a snapshot; with a rollback journal it stops a COMMIT."""
        begun, journal = in_transaction(connection), not _has_wal(connection)
        return Reach(begun, locks_reads=begun and journal, stops_readers=journal)
