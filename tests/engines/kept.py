"""Connections to PostgreSQL that outlive a test: a new one costs its server more than a test does.

The driver gives the next test one that an earlier test has closed, as ``DISCARD ALL`` leaves it:
without settings, temporary tables, prepared statements, locks and unread notifications. What is
broken or within a transaction when it is closed is closed indeed. Each test has an engine and a
pool of its own.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

import psycopg

__all__ = ["Kept"]

_FEW = 6


class Kept:
    """Connections that nobody uses now, by the arguments that made them."""

    def __init__(self) -> None:
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()

    def connect(self, **named: Any) -> psycopg.Connection[Any]:
        named.pop("context", None)  # the adapters of a dialect
        while (connection := self._taken(named)) is not None:
            if connection.is_as_new():
                return connection.used_now()
        made = _Connection.connect(**named)
        made.kept, made.named = self, named
        return made.used_now()

    def _taken(self, named: dict[str, Any]) -> _Connection | None:
        with self._lock:
            for connection in reversed(self._idle):
                if connection.named == named:
                    self._idle.remove(connection)
                    return connection
        return None

    def takes(self, connection: _Connection) -> bool:
        with self._lock:
            if len(self._idle) >= _FEW:
                return False
            self._idle.append(connection)
            return True

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.end()


class _Connection(psycopg.Connection[Any]):
    kept: Kept | None = None
    named: dict[str, Any]
    #: The test that uses it, or has used it last: named where somebody forgets to close it.
    user = ""

    def __del__(self) -> None:
        if not self.closed:
            said = f"{self.user} has not closed a connection"
            warnings.warn(said, ResourceWarning, stacklevel=1, source=self)
            self.end()

    def used_now(self) -> _Connection:
        self.user = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        return self

    def close(self) -> None:
        if self.kept is None or self.closed or not self._is_idle() or not self.kept.takes(self):
            self.end()

    def end(self) -> None:
        super().close()

    def is_as_new(self) -> bool:
        """Forget what the test before has set."""
        try:
            with self.transaction(force_rollback=True):
                pass  # after a ROLLBACK the driver knows of no prepared statement
            self.autocommit = True
            self.execute("DISCARD ALL", prepare=False)
            self.autocommit = False
            self.isolation_level = self.read_only = self.deferrable = None
            for handler in [*self._notify_handlers]:
                self.remove_notify_handler(handler)
            for _ in self.notifies(timeout=0):
                pass  # the test before has not read it
        except psycopg.Error:
            self.end()
            return False
        return True

    def _is_idle(self) -> bool:
        return self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
