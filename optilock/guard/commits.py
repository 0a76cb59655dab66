"""A COMMIT that another transaction's change refuses is a conflict, whoever sends it.

PostgreSQL at SERIALIZABLE, and Galera, may report a conflict no earlier than at COMMIT.
``session.commit()``, ``with sessions.begin()``, ``with session.begin()``, the ``commit()`` of a
``SessionTransaction`` (zope.sqlalchemy calls that), ``prepare()`` and the async forms all end in
the session's outermost transaction, so that is what tells the conflict.

SQLAlchemy takes a transaction whose COMMIT was refused for one that can still be rolled back. It is
rolled back here, before the rows are read again; a ``rollback()`` that follows has nothing to do.

A savepoint tells what ends it by a conflict in the same way, and is left to be rolled back: by its
block, or with the whole transaction by ``session.rollback()``. A database that reports the conflict
at RELEASE has ended the whole transaction (:mod:`optilock.dialects.connections`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IllegalStateChangeError, ResourceClosedError
from sqlalchemy.orm import SessionTransaction

from optilock.dialects.transient import ended_by_conflict
from optilock.guard.ended import clear, conflict_after_rollback, conflict_in_savepoint
from optilock.session.watched import known_of

__all__ = ["guard_commit"]

_log = logging.getLogger("optilock")
#: Old releases of SQLAlchemy stumble over their own rollback after a refused PREPARE.
_FAILURES = (DBAPIError, IllegalStateChangeError)


def guard_commit(transaction: SessionTransaction) -> None:
    """Let the transactions and savepoints of a watched session tell a refused COMMIT or RELEASE."""
    if type(transaction) is SessionTransaction:
        transaction.__class__ = _Savepoint if transaction.nested else _Guarded


class _Guarded(SessionTransaction):
    #: Another transaction's change has ended it.
    ended = False

    def commit(self, *args: Any, **options: Any) -> None:
        owner, before = known_of(self.session).owner, sys.exc_info()[1]
        if owner is not None:
            owner.committing_now()
        try:
            super().commit(*args, **options)
        except _FAILURES as error:
            self._tell(error, before)
            raise

    def prepare(self) -> None:
        owner, before = known_of(self.session).owner, sys.exc_info()[1]
        if owner is not None:
            owner.committing_now()
        try:
            super().prepare()
        except _FAILURES as error:
            self._tell(error, before)
            raise

    def rollback(self, *args: Any, **options: Any) -> None:
        if not self.ended:
            super().rollback(*args, **options)

    def _tell(self, error: Exception, before: BaseException | None) -> None:
        """Raise the conflict behind ``error``, if there is one, with the transaction ended."""
        # A flush that failed has made the transaction inactive.
        refused = [c for c in known_of(self.session).connections if self.is_active and _refused(c)]
        clear(refused)
        for reason in _since(before, error):
            if ended_by_conflict(reason, at_commit=bool(refused)):
                self._end()
                raise conflict_after_rollback(self.session, reason) from reason

    def _end(self) -> None:
        try:
            super().rollback()
        except ResourceClosedError:
            pass  # after a refused PREPARE, SQLAlchemy has rolled back
        except Exception:
            _log.warning("rolling back after a refused COMMIT failed", exc_info=True)
        self.ended = True


class _Savepoint(SessionTransaction):
    def commit(self, *args: Any, **options: Any) -> None:
        before = sys.exc_info()[1]
        try:
            super().commit(*args, **options)  # for ``session.commit()``, of those around it, too
        except DBAPIError as error:
            for reason in _since(before, error):
                if ended_by_conflict(reason):
                    raise conflict_in_savepoint(self.session) from reason
            raise


def _since(before: BaseException | None, error: BaseException) -> Iterator[DBAPIError]:
    """``error``, and the errors that it hides: a ROLLBACK may fail on account of the first one."""
    seen: BaseException | None = error
    while seen is not None and seen is not before:
        if isinstance(seen, DBAPIError):
            yield seen
        seen = seen.__context__


def _refused(connection: Connection) -> bool:
    """Was it COMMIT that failed? A flush that fails inside a savepoint ends no more than that."""
    return not (connection.closed or connection.invalidated or connection.in_transaction())
