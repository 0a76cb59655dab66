"""A node of a Galera cluster, where several servers write the same rows.

What a transaction has written is compared with what the other nodes have written when it commits
("certification"); the first one wins, and the other one's COMMIT, or its next statement, is error
1213. Locks are local to a node: another node writes a row that was read FOR UPDATE here, without
waiting.

So a row that must be as it was read has to be written. Its version is moved, and moved back in the
same transaction: that is a write for the certification, and all ETags stay valid. Measured in 60
pairs of transactions on two nodes, where each wrote one row and had to find the other one
unchanged: both committed 58 times with LOCK IN SHARE MODE, 37 times with an UPDATE that sets the
version to itself (MariaDB leaves it out where nothing changes), 0 times with a version that is
moved, or moved and moved back.

A node answers ROLLBACK with 1213, too, where another node's commit has ended the transaction
meanwhile, and with 1047 once it has lost the others. Either way there is nothing left to roll back.
(https://galeracluster.com/library/documentation/certification-based-replication.html)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Table, text
from sqlalchemy.exc import DBAPIError

from optilock._undocumented.connections import raise_as_of
from optilock.dialects.connections import send_afterwards, undo_at_checkin
from optilock.dialects.mariadb.causes import number_of
from optilock.errors import ConfigurationError

#: Another transaction was first.
_ABORTED = 1213
#: ER_UNKNOWN_COM_ERROR: "WSREP has not yet prepared node for application use".
NOT_PREPARED = 1047

_known: WeakKeyDictionary[Dialect, bool] = WeakKeyDictionary()


def is_node(connection: Connection) -> bool:
    """Return whether the server belongs to a cluster. Checked once, with the driver alone."""
    dialect = connection.dialect
    found = _known.get(dialect)
    if found is None:
        try:
            found = _ask(connection.connection)
        except dialect.loaded_dbapi.Error:
            return False  # the next statement raises the error
        except BaseException as error:  # an interrupt: the answer may be half read
            raise_as_of(connection, error)
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
    " between nodes. If all writers use this one node, give the engine the level,"
    " create_engine(..., isolation_level='SERIALIZABLE'), and omit isolation=. With read_only=True"
    " the level is not refused. Nothing was sent."
)


def see_what_others_have_committed(connection: Connection) -> None:
    """Let the reads that follow wait for what the other nodes had committed before them.

    (https://mariadb.com/kb/en/galera-cluster-system-variables/#wsrep_sync_wait)
    """
    before = connection.scalar(text("SELECT @@SESSION.wsrep_sync_wait"))
    if before is not None and not before & 1:
        connection.exec_driver_sql(f"SET SESSION wsrep_sync_wait = {before | 1}")
        undo_at_checkin(connection, f"SET SESSION wsrep_sync_wait = {before}")


# -- a table that is changed on every node of a cluster --------------------------------------------
#
# A node sends a statement that changes a table to all nodes, as text ("total order isolation").
# Each node executes it at the same place among the write sets, and ends the transactions that have
# the table: they get 1213, and run again. A statement that gives up waiting does so on each node
# separately: ``ALTER TABLE … NOWAIT`` was executed on the nodes where the table was free, and
# ignored on the node where a transaction had it, without an error. So nothing is limited here, and
# nothing interrupted.
#
# How a node sends it can be set (``wsrep_OSU_method``): with RSU it keeps the statement to itself.
# And a client that has changed a table on one node alone (``wsrep_on = OFF``) has made two tables
# of it. So the nodes are compared before and afterwards.
# (https://galeracluster.com/library/documentation/schema-upgrades.html)

#: A year: the limit that a server has without settings is a day.
_FOR_EVER = 31_536_000


@contextmanager
def together(connection: Connection) -> Iterator[None]:
    """Let the statement wait on this node as long as it does on the others."""
    with limited(connection, _FOR_EVER):
        yield


def nodes(connection: Connection, named: Sequence[str]) -> Sequence[str]:
    """Return ``host:port`` of every node: the ``named`` ones, or those that the cluster reports.

    Raises:
        ConfigurationError: this node is none of a cluster that works, or would keep the change to
            itself; or not all of them are known.
    """
    told = dict(map(tuple, connection.execute(text("SHOW STATUS LIKE 'wsrep_%'")).all()))
    state, method = told.get("wsrep_local_state_comment"), _method(connection)
    if told.get("wsrep_cluster_status") != "Primary" or state != "Synced":
        raise ConfigurationError(
            f"This node of the cluster is {state} ({told.get('wsrep_cluster_status')}), so it"
            " cannot change a table on the others. Nothing was changed: wait until it is Synced,"
            " or use another node."
        )
    if method != "TOI":
        raise ConfigurationError(
            f"wsrep_OSU_method is {method} on this node, which keeps the change of a table to the"
            " node: the others would have another table. Nothing was changed: set it to TOI."
        )
    told_by_cluster = str(told.get("wsrep_incoming_addresses", "")).split(",")
    found = list(named) or [address.strip() for address in told_by_cluster]
    size = int(str(told.get("wsrep_cluster_size", 0)))
    if len({*found}) != size or not all(map(_is_address, found)):
        raise ConfigurationError(
            f"The cluster has {size} nodes, and the roll-out has to look at each of them. It knows"
            f" of {', '.join(found) or 'none'}. Nothing was changed: name all of them, the one of"
            " the URL too, with nodes=['host:port', ...] (--node host:port)."
        )
    return found


def _is_address(given: str) -> bool:
    host, _, port = given.rpartition(":")
    return bool(host) and port.isdigit()


def _method(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT @@SESSION.wsrep_OSU_method"))).upper()


_COLUMNS = (
    "SELECT column_name, CONCAT_WS(' ', column_type, IF(is_nullable = 'NO', 'NOT NULL', 'NULL'),"
    " CONCAT('DEFAULT ', column_default), NULLIF(extra, ''))"
    " FROM information_schema.columns"
    " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_TRIGGERS = (
    "SELECT trigger_name,"
    " CONCAT_WS(' ', action_timing, event_manipulation, MD5(action_statement))"
    " FROM information_schema.triggers"
    " WHERE event_object_schema = COALESCE(:schema, DATABASE()) AND event_object_table = :name"
)


def made(connection: Connection, table: Table) -> Mapping[str, object]:
    """Its columns and triggers on this node, once all is done that the others have sent before."""
    see_what_others_have_committed(connection)
    named = {"schema": table.schema, "name": table.name}
    columns = {f"column {n}": what for n, what in connection.execute(text(_COLUMNS), named)}
    triggers = {f"trigger {n}": what for n, what in connection.execute(text(_TRIGGERS), named)}
    return {**columns, **triggers}


# -- how long a statement that changes a table waits for its lock ----------------------------------
#
# It needs the table exclusively when it begins, and once more when it ends. While it waits for the
# transactions that have the table, every later statement of others waits behind it, reads included.
# The server has a limit for that in whole seconds only (``lock_wait_timeout``). So a thread looks
# at the statement by another connection (:func:`limit_waits`), and lets the server interrupt it
# when it has waited for too long; what it has done until then is undone.
#
# A thread cannot use a driver that belongs to an event loop: there the limit is in whole seconds,
# and less than one means not to wait at all.

#: ER_QUERY_INTERRUPTED
INTERRUPTED = 1317
#: Seconds between two looks.
_LOOK = 0.015
#: Its time there is the time since the statement began, not since it waits.
_WAITS = text(
    "SELECT 1 FROM information_schema.processlist WHERE id = :id AND command = 'Query'"
    " AND state = 'Waiting for table metadata lock'"
)


@contextmanager
def limit_waits(
    connection: Connection, beside: Connection | None, seconds: float
) -> Iterator[None]:
    """Interrupt the statement of ``connection`` that waits for a table for longer."""
    if beside is None or connection.dialect.is_async:
        with limited(connection, int(seconds)):
            yield
        return
    number = connection.scalar(text("SELECT CONNECTION_ID()"))
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(beside, number, seconds, over))
    with limited(connection, math.ceil(seconds) + 1):  # if the thread cannot look
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@contextmanager
def limited(connection: Connection, seconds: int) -> Iterator[None]:
    """Let the server end the wait, in whole seconds; 0: it does not wait."""
    connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {seconds}")
    with send_afterwards(connection.exec_driver_sql, "SET SESSION lock_wait_timeout = DEFAULT"):
        yield


def _watch(beside: Connection, number: int, seconds: float, over: threading.Event) -> None:
    since: float | None = None
    with suppress(DBAPIError):
        while not over.wait(_LOOK):
            if beside.execute(_WAITS, {"id": number}).first() is None:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since >= seconds:
                beside.exec_driver_sql(f"KILL SOFT QUERY {number}")
                since = None


#: Whose transaction has the table, where the plugin ``metadata_lock_info`` is there; or else the
#: oldest transaction of the server, which only users with the right PROCESS may see.
_HOLDERS = (
    "SELECT p.id, p.user, p.host, p.command FROM information_schema.metadata_lock_info l"
    " JOIN information_schema.processlist p ON p.id = l.thread_id"
    " LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id"
    " WHERE l.table_schema = COALESCE(:schema, DATABASE()) AND l.table_name = :name"
    " AND p.id <> CONNECTION_ID() ORDER BY t.trx_started IS NULL, t.trx_started LIMIT 1",
    "SELECT p.id, p.user, p.host, p.command FROM information_schema.innodb_trx t"
    " JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
    " WHERE p.id <> CONNECTION_ID() ORDER BY t.trx_started LIMIT 1",
)


def holder(connection: Connection, table: Table) -> str | None:
    """Return the owner of the table's lock, or of the oldest transaction."""
    for question, sure in zip(_HOLDERS, (True, False), strict=True):
        with suppress(DBAPIError):
            named = {"schema": table.schema, "name": table.name}
            found = connection.execute(text(question), named if sure else {}).first()
            if found is not None:
                number, user, host, does = found
                oldest = "" if sure else ", whose transaction is the oldest of the server"
                return f"connection {number} ({user}@{host}, {does}){oldest}"
    return None
