"""Connections that a queue keeps: a checkout for each call would take as long as the call.

Each is in AUTOCOMMIT mode, where a statement is a transaction and needs no further trip. A queue
keeps as many as its callers have needed at the same time, up to a few; they are the engine's, and
go back to its pool when the queue is closed. One that has seen an error is not kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from optilock.dialects.connections import give_back, has_ended_idle
from optilock.dialects.queue_sql import Messages
from optilock.errors import CommitOutcomeUnknown, OptilockError
from optilock.undocumented.connections import set_options

__all__ = ["Connections"]

FEW = 4
ALONE = {"isolation_level": "AUTOCOMMIT"}


def opened_alone(engine: Engine) -> Connection:
    """A new one in AUTOCOMMIT mode."""
    connection = engine.connect()
    set_options(connection, ALONE)
    return connection


class Connections:
    """The connections of one queue."""

    def __init__(self, engine: Engine, store: Messages, *, keeps: bool) -> None:
        self._engine = engine
        self._store = store
        self._keeps = keeps
        self._idle: list[Connection] = []
        self._process = os.getpid()
        self._lock = threading.Lock()

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        connection = self._taken() or self._opened()
        try:
            yield connection
        except OptilockError as error:
            if isinstance(error, CommitOutcomeUnknown):
                give_back(connection)
            else:
                self._put(connection)
            raise
        except BaseException:
            give_back(connection)
            raise
        self._put(connection)

    def _taken(self) -> Connection | None:
        """One that is kept, and is alive: what is sent on a dead one may have got there, or not."""
        while (connection := self._popped()) is not None:
            if not has_ended_idle(connection):
                return connection
            connection.invalidate()
            give_back(connection)
        return None

    def _popped(self) -> Connection | None:
        with self._lock:
            if self._process != os.getpid():  # a fork: they are the parent's
                self._idle, self._process = [], os.getpid()
            return self._idle.pop() if self._idle else None

    def _opened(self) -> Connection:
        connection = opened_alone(self._engine)
        self._store.prepare(connection)
        return connection

    def _put(self, connection: Connection) -> None:
        with self._lock:
            if self._keeps and not connection.invalidated and len(self._idle) < FEW:
                self._idle.append(connection)
                return
        give_back(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            give_back(connection)
