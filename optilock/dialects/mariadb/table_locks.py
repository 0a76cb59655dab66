"""A statement that changes a table waits for its lock no longer than it was told.

It needs the table for itself when it begins, and once more when it ends. While it waits for the
transactions that have the table, every later statement of others waits behind it, the readers'
too. The server knows a limit for that in whole seconds only (``lock_wait_timeout``). So a thread
looks at the statement by another connection (:func:`bounded`), and lets the server interrupt it
when it has waited for too long; what it has done until then is undone.

A driver that belongs to an event loop cannot be asked by a thread: there the limit is in whole
seconds, and less than one means not to wait at all.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Table, text
from sqlalchemy.exc import DBAPIError

from optilock.dialects.connections import afterwards

__all__ = ["INTERRUPTED", "bounded", "holder", "limited"]

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
def bounded(connection: Connection, beside: Connection | None, seconds: float) -> Iterator[None]:
    """Interrupt the statement of ``connection`` that waits for a table for longer."""
    if beside is None or connection.dialect.is_async:
        with limited(connection, int(seconds)):
            yield
        return
    number = connection.scalar(text("SELECT CONNECTION_ID()"))
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(beside, number, seconds, over))
    with limited(connection, math.ceil(seconds) + 1):  # if nobody can look
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
    with afterwards(connection.exec_driver_sql, "SET SESSION lock_wait_timeout = DEFAULT"):
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
#: oldest transaction of the server, which only who has the right PROCESS may see.
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
    """Whose transaction has the table, or is the oldest one."""
    for question, sure in zip(_HOLDERS, (True, False), strict=True):
        with suppress(DBAPIError):
            named = {"schema": table.schema, "name": table.name}
            found = connection.execute(text(question), named if sure else {}).first()
            if found is not None:
                number, user, host, does = found
                oldest = "" if sure else ", whose transaction is the oldest of the server"
                return f"connection {number} ({user}@{host}, {does}){oldest}"
    return None
