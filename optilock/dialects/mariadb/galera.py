"""A node of a Galera cluster, where several servers write the same rows.

What a transaction has written is compared with what the other nodes have written when it commits
("certification"); the first one wins, and the other one's COMMIT, or its next statement, is error
1213. What it has only locked is known to its own node: a row that was read FOR UPDATE here is
written there, and nobody waits.

So a row that must be as it was read has to be written. Its version is moved, and moved back in the
same transaction: that is a write for the certification, and nobody's tag is out of date afterwards.
Measured in 60 pairs of transactions on two nodes, each of which wrote one row and had to find the
other one unchanged: both committed 58 times with LOCK IN SHARE MODE, 37 times with an UPDATE that
sets the version to itself (MariaDB leaves it out where nothing changes), 0 times with a version
that is moved, or moved and moved back.

A node answers ROLLBACK with 1213, too, where another node's commit has ended the transaction
meanwhile, and with 1047 once it has lost the others. Either way there is nothing left to roll back.
(https://galeracluster.com/library/documentation/certification-based-replication.html)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, text

from optilock.dialects.connections import undo_with

__all__ = [
    "NOT_PREPARED",
    "NOT_SERIALIZABLE",
    "is_node",
    "number_of",
    "see_what_others_have_committed",
]

#: Another transaction was first.
_ABORTED = 1213
#: ER_UNKNOWN_COM_ERROR: "WSREP has not yet prepared node for application use".
NOT_PREPARED = 1047

_known: WeakKeyDictionary[Dialect, bool] = WeakKeyDictionary()


def number_of(error: BaseException) -> object:
    """The number that every driver has first in ``args``."""
    return error.args[0] if error.args else None


def is_node(connection: Connection) -> bool:
    """Does the server belong to a cluster? Asked once for an engine, beside SQLAlchemy."""
    dialect = connection.dialect
    found = _known.get(dialect)
    if found is None:
        try:
            found = _ask(connection.connection)
        except dialect.loaded_dbapi.Error:
            return False  # whoever sends the next statement is told why
        _known[dialect] = found
        if found:
            _cover_rollback(dialect)
    return found


def _ask(dbapi_connection: Any) -> bool:
    """A server that was built without Galera has no such variable."""
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute("SHOW GLOBAL VARIABLES WHERE variable_name = 'wsrep_on'")
        return any(str(value).upper() == "ON" for _, value in cursor.fetchall())
    finally:
        cursor.close()


def _cover_rollback(dialect: Dialect) -> None:
    """From here on, take the two errors of ROLLBACK for what they are."""
    setattr(dialect, "do_rollback", partial(_roll_back, dialect.do_rollback))  # noqa: B010


def _roll_back(original: Callable[[Any], None], dbapi_connection: Any) -> None:
    try:
        original(dbapi_connection)
    except Exception as error:
        number = number_of(error)
        if number == NOT_PREPARED:
            dbapi_connection.invalidate(error)  # the next one may reach a node that is well
        elif number != _ABORTED:
            raise


NOT_SERIALIZABLE = (
    "this is a node of a Galera cluster, where SERIALIZABLE holds between the transactions of one"
    " node only: two nodes may each commit what the other one should have prevented. Give the rows"
    " a version and verify(obj) those that were only read (or verify_reads=True), which holds"
    " between nodes. If all who write use this one node, give the engine the level,"
    " create_engine(..., isolation_level='SERIALIZABLE'), and leave isolation= out. With"
    " read_only=True the level is not refused. Nothing was sent."
)


def see_what_others_have_committed(connection: Connection) -> None:
    """Let the reads that follow wait for what the other nodes had committed before them.

    (https://mariadb.com/kb/en/galera-cluster-system-variables/#wsrep_sync_wait)
    """
    before = connection.scalar(text("SELECT @@SESSION.wsrep_sync_wait"))
    if before is not None and not before & 1:
        connection.exec_driver_sql(f"SET SESSION wsrep_sync_wait = {before | 1}")
        undo_with(connection, f"SET SESSION wsrep_sync_wait = {before}")
