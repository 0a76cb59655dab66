"""What an attempt that failed leaves to the next one: rows to lock, and perhaps its transaction.

A missed version is no error of the database: the UPDATE has matched no row, and the transaction is
alive. If it has written nothing else, there is nothing to roll back. So a decorated function with a
strategy that locks runs again in the same transaction, in a new session, which reads everything
anew. The rows that have missed are locked already: the look after the miss has locked them.

The transaction is rolled back, and the next attempt begins another one, wherever anything else may
have been sent: another row of the flush that was written, a statement, a savepoint that is open,
``session.connection()``, a row of a class without a version. So it is where other parts of the
unit, or listeners to ``after_begin``, may have sent something when it began, and would do so again;
where the transaction reads a snapshot, because it would not see what the others have written;
where it waits for locks only briefly; and where an inner unit has failed.

Either way the next attempt locks what has conflicted, so it waits for the lock, where the others
queue, and not for some time before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy.orm import Session

from optilock.dialects import database_of
from optilock.errors import ConcurrencyError
from optilock.undocumented.flushes import Held, leave_connections, take_connections
from optilock.unit.strategies.heat import Key
from optilock.unit.strategies.reading import Reading
from optilock.watched.session.watched import READS, known_of

__all__ = ["Relay"]


class Relay:
    """Between two attempts of one call."""

    def __init__(self, attempts: int) -> None:
        #: How many there are at most, if what fails are waits for locks.
        self.attempts = attempts

    #: An attempt has failed, and the next one has not begun.
    is_due = False
    #: The connection of a transaction that goes on, and the engines of its session.
    held: Held | None = None
    _routes: Mapping[Any, Any] = MappingProxyType({})
    _rows: frozenset[Key] = frozenset()

    def is_at_once(self, error: BaseException) -> bool:
        """Does the next attempt lock what this one has failed on, so that it need not wait?"""
        return bool(self._rows)

    def hurries(self, session: Session, number: int) -> bool:
        """Does another attempt follow this one, and lock the rows for which it has waited?"""
        reading: Reading | None = session.__dict__.get(READS)
        return number < self.attempts and reading is not None and reading.adaptive is not None

    # -- the attempt that failed -------------------------------------------------------------------

    def keeps(self, own: Any, error: BaseException) -> bool:
        """Take the transaction of a unit that ends, if it can go on."""
        if not _goes_on(own, error):
            return False
        self.held = leave_connections(own.session.get_transaction())
        self._routes = own.routes
        return True

    def failed(self, session: Session, error: BaseException) -> None:
        """Remember what to lock."""
        reading: Reading | None = session.__dict__.get(READS)
        if reading is not None:
            self.is_due, self._rows = True, reading.remember(session, error)

    # -- the next one ------------------------------------------------------------------------------

    def hands_over(self, own: Any) -> None:
        """Give a unit that has just begun what the one before it has left."""
        reading: Reading | None = own.session.__dict__.get(READS)
        if reading is not None:
            reading.insist = self._rows
        self.is_due, self._rows = False, frozenset()
        held, self.held = self.held, None
        if held is not None:
            own.routes.update(self._routes)
            session, transaction = own.session, own.session.get_transaction()
            take_connections(transaction, held)
            for connection in {one[0] for one in held.values()}:
                session.dispatch.after_begin(session, transaction, connection)

    def drop(self) -> None:
        """No attempt follows: roll back what was left."""
        held, self.held = self.held, None
        if held is None:
            return
        for connection, transaction, _, closes in set(held.values()):
            try:
                transaction.close()
            finally:
                if closes:
                    connection.close()


def _goes_on(own: Any, error: BaseException) -> bool:
    """Is nothing written, and does the transaction see what others have written since?"""
    session: Session = own.session
    known = known_of(session)
    reading: Reading | None = session.__dict__.get(READS)
    if reading is None or type(error) is not ConcurrencyError or error.__cause__ is not None:
        return False
    if known.waits_briefly:
        return False  # and the next attempt would wait no longer where it locks
    if len(own.parts) > 1 or len(session.dispatch.after_begin) > 1:
        return False  # others would begin twice in one transaction
    if own.doomed_by is not None or known.sent_more or known.has_written() or known.undone:
        return False
    transaction = session.get_transaction()
    if transaction is None or not transaction.is_active or session.in_nested_transaction():
        return False
    if len(own.connections) != 1 or session.twophase or not reading.only_read():
        return False
    connection = own.connections[0]
    if connection.closed or connection.invalidated or not connection.in_transaction():
        return False
    return database_of(connection.dialect).shows_newest_after_miss(connection)
