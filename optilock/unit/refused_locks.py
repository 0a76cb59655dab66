"""Locks that an adaptive unit added to a query, and did not get.

An optimistic unit sends the same query without the lock, so the lock must not be the reason why the
work fails:

* *The lock was refused.* The user may not write the table, the transaction or the server only
  reads, or the rows are those of a materialized view. The attempt is over, and another one follows,
  with any ``on=``. Units of this name read the table without locks, until one of them writes
  it. No unit locks rows that can never be locked.
* *The lock was not free in time.* The next attempt of a decorated function reads these rows without
  a lock, and waits no longer than that for others.

SQLite takes its lock in a statement of its own, after which the transaction goes on: there the same
attempt goes on without the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import SessionRecord
from optilock.dialects import Cause, database_of, database_of_error
from optilock.dialects.transient import cause_of
from optilock.unit.heat import Key, Memory

#: An attribute of an error: the query would not have failed without the lock of the strategy.
_OWN_LOCK = "_optilock_own_lock"
_NOTE = (
    "optilock: the unit's strategy had added the lock to this query, because units of this process"
    ' conflict on its rows; strategy="optimistic" reads without locks'
)


class AddedLocks:
    """The locks that the strategy of one unit adds to its queries."""

    def __init__(self) -> None:
        #: The rows of the last query that got a lock.
        self.asked: Mapping[Key, Mapper[Any]] = {}
        #: Hot rows that are read without a lock all the same.
        self.avoided: frozenset[Key] = frozenset()
        #: The one lock of the file is not to be had.
        self.are_refused = False
        self._limited = True

    def do_without(self, keys: frozenset[Key]) -> None:
        """Read these rows without locks, which an earlier attempt has not got."""
        self.avoided, self._limited = keys, not keys

    def avoids(self, session: Session, key: Key, mapper: Mapper[Any]) -> bool:
        """Return whether the row is read without a lock; waits for others then have a bound."""
        if key not in self.avoided:
            return False
        if not self._limited:
            self._limited = True
            connection = connection_to_write(session, mapper, for_queries=True)
            bound = database_of(connection.dialect).waits.bounds_waits
            if bound is not None:
                type(connection).execute(connection, select(bound))
        return True

    def avoid(self, key: Key) -> None:
        """Read the row without a lock from here on."""
        self.avoided |= {key}

    def lost(self, error: DBAPIError, memory: Memory, record: SessionRecord) -> frozenset[Key]:
        """Return the rows to read without a lock in the next attempt, if a lock has failed."""
        if not (self.asked and _is_query(error)):
            return frozenset()
        database, owner = database_of_error(error.orig), record.owner
        if database.refuses_locks(error):
            name = None if owner is None else owner.name
            note_added_lock(error)
            error.add_note(_NOTE)
            for key in self.asked:
                memory.note_refused(name, key, always=database.never_locks(error))
            return frozenset(self.asked)
        in_vain = cause_of(error) is Cause.LOCK_TIMEOUT and not record.waits_briefly
        return frozenset(self.asked if in_vain else ())


def may_go_on(error: DBAPIError) -> bool:
    """Return whether the transaction goes on without the lock that a statement did not get."""
    refused = database_of_error(error.orig).refuses_locks(error)
    return refused or cause_of(error) is Cause.LOCK_TIMEOUT


def note_added_lock(error: BaseException) -> None:
    """Note that the work would not have failed without the lock of a strategy."""
    with suppress(AttributeError):  # an error with slots
        setattr(error, _OWN_LOCK, True)


def is_of_added_lock(error: BaseException) -> bool:
    """Return whether the work would not have failed without the lock of a strategy."""
    return getattr(error, _OWN_LOCK, False) is True


def _is_query(error: DBAPIError) -> bool:
    return (error.statement or "").lstrip()[:6].upper() == "SELECT"
