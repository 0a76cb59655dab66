"""The legacy of a failed attempt for the next one: rows to lock, and perhaps its transaction.

A missed version is no error of the database: the UPDATE has matched no row, and the transaction is
alive. If it has written nothing else, there is nothing to roll back. So a decorated function with a
strategy that locks runs again in the same transaction, in a new session, which reads everything
again. The rows that have missed are locked already, by the look after the miss.

The transaction is rolled back, and the next attempt begins another one, if anything else may have
been sent: another row of the flush that was written, a statement, an open savepoint,
``session.connection()``, a row of a class without a version. The same holds where other parts of
the unit, or listeners to ``after_begin``, may have sent something at the begin, and would do so
again; where the transaction reads a snapshot, because it would not see the rows that others have
written; where it waits for locks only briefly; and where an inner unit has failed.

Either way the next attempt locks the rows that have conflicted. So it queues for the row lock
instead of sleeping.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy.orm import Session

from optilock._undocumented.flushes import HeldConnections, leave_connections, take_connections
from optilock._watched.session.record import READS_KEY, record_of
from optilock.dialects import database_of
from optilock.dialects.locks import BEGINS
from optilock.dialects.transaction_ends import is_over
from optilock.errors import ConcurrencyError
from optilock.unit.heat import Key
from optilock.unit.reading import Reading
from optilock.unit.round_trips import PipelinedPart
from optilock.unit.second_sessions import watch_statements

_log = logging.getLogger("optilock")


class NextAttempt:
    """The state between two attempts of one call."""

    def __init__(self, attempts: int) -> None:
        #: The most attempts there are, if waits for locks fail.
        self.attempts = attempts

    #: An attempt has failed, and the next one has not begun.
    is_due = False
    #: The connection of a transaction that goes on, and the engines of its session.
    held: HeldConnections | None = None
    _routes: Mapping[Any, Any] = MappingProxyType({})
    _rows: frozenset[Key] = frozenset()
    #: Rows whose locks were not to be had.
    _avoided: frozenset[Key] = frozenset()

    def locks_rows(self, error: BaseException) -> bool:
        """Return whether the next attempt locks the rows of this failure, so it need not wait."""
        return bool(self._rows or self._avoided)

    def waits_briefly(self, session: Session, number: int) -> bool:
        """Return whether this attempt's waits are brief: another one follows and locks first."""
        reading = _reading_of(session)
        return number < self.attempts and reading is not None and reading.adaptive is not None

    # -- the attempt that failed -------------------------------------------------------------------

    def keep_transaction(self, own: Any, error: BaseException) -> bool:
        """Take the transaction of a unit that ends, if it can go on."""
        if not _can_go_on(own, error):
            return False
        self.held = leave_connections(own.session.get_transaction())
        self._routes = own.routes
        return True

    def remember(self, session: Session, error: BaseException) -> None:
        """Remember the rows to lock."""
        reading = _reading_of(session)
        if reading is not None:
            self.is_due, self._rows = True, reading.remember(session, error)
            self._avoided = reading.not_locked

    # -- the next one ------------------------------------------------------------------------------

    def hand_over(self, own: Any) -> None:
        """Give the rows and the transaction of the failed attempt to a unit that has begun."""
        reading = _reading_of(own.session)
        if reading is not None:
            watch_statements()
            reading.insist, reading.goes_on = self._rows, self.held is not None
            reading.added.do_without(self._avoided)
        self.is_due, self._rows, self._avoided = False, frozenset(), frozenset()
        held, self.held = self.held, None
        if held is not None:
            own.routes.update(self._routes)
            session, transaction = own.session, own.session.get_transaction()
            take_connections(transaction, held)
            for connection in {one[0] for one in held.values()}:
                session.dispatch.after_begin(session, transaction, connection)

    def drop(self) -> None:
        """Roll back the transaction that was kept, because no attempt follows."""
        held, self.held = self.held, None
        if held is None:
            return
        for connection, transaction, _, closes in set(held.values()):
            try:
                transaction.close()
            except Exception:  # it never hides why no attempt follows
                _log.warning("rolling back failed; the connection is thrown away", exc_info=True)
                connection.invalidate()
            finally:
                if closes:
                    connection.close()


def _reading_of(session: Session) -> Reading | None:
    reading: Reading | None = session.__dict__.get(READS_KEY)
    return reading


def _can_go_on(own: Any, error: BaseException) -> bool:
    """Return whether the transaction has written nothing and sees the rows of others."""
    return (
        type(error) is ConcurrencyError
        and error.__cause__ is None
        and _has_only_read(own)
        and _is_alive(own)
    )


def _has_only_read(own: Any) -> bool:
    """Return whether the unit has only read, and its waits for locks are not brief."""
    session: Session = own.session
    known, reading = record_of(session), _reading_of(session)
    if reading is None or not reading.only_read():
        return False
    if reading.adaptive is not None and own.name in reading.memory.accompanied:
        return False  # another thread has learned that others work inside such a unit
    if known.waits_briefly:
        return False  # and the next attempt would wait no longer where it locks
    parts = [part for part in own.options.all_parts if type(part) is not PipelinedPart]
    if len(parts) > 1 or len(session.dispatch.after_begin) > 1:
        return False  # others would begin twice in one transaction
    if own.is_doomed:
        return False
    return not (known.sent_more or known.has_written() or known.undone)


def _is_alive(own: Any) -> bool:
    """Return whether the unit's only transaction can be used by another session."""
    session: Session = own.session
    transaction = session.get_transaction()
    if transaction is None or not transaction.is_active or session.in_nested_transaction():
        return False
    if len(own.connections) != 1 or session.twophase:
        return False
    connection = own.connections[0]
    if connection.closed or connection.invalidated or not connection.in_transaction():
        return False
    if is_over(connection):
        return False
    if BEGINS in connection.info:  # of a pipelined unit, whose BEGIN went with a statement
        return False
    return database_of(connection.dialect).isolation.shows_newest_after_miss(connection)
