"""Under which lease a row may be written: one condition of the write itself.

Whoever names no lease writes a row that nobody has leased; whoever names one writes only while it
is in force, so that a holder whose lease has ended is refused also where nobody has taken over. In
a session that has leased none of the rows, and in one that has leased some::

    lease_until IS NULL OR lease_until <= clock OR lease_id IS NULL
    CASE WHEN lease_until > clock THEN lease_id END IS NOT DISTINCT FROM :lease

The same write stores the id that it names: that of the holder, which is there already, or NULL. So
a lease that has ended cannot be renewed once somebody else has written the row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, null, or_, true
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import Entry
from optilock.leases.columns import FAR, LEASE_ID, LeaseColumns, columns_of
from optilock.leases.errors import LeaseHeld, LeaseLost

__all__ = ["LEASE", "UNDER_LEASES", "refusal"]

#: The value that each row has of its own: the id of the lease under which it is written.
LEASE = "lease"
_KIND: Mapping[str, TypeEngine[Any]] = {LEASE: LEASE_ID}


class RowLease(Condition):
    """On rows of one table, of which the session has leased some."""

    def __init__(self, columns: LeaseColumns, operation: str) -> None:
        self._columns, self._operation = columns, operation
        self._guarded = operation in columns.policy.guards

    @property
    def each(self) -> Mapping[str, TypeEngine[Any]]:
        return _KIND

    def gives(self, given: Given) -> Mapping[Column[Any], ColumnElement[Any]]:
        takes_away = self._guarded and self._operation == "update"
        return {self._columns.id: self._mine(given)} if takes_away else {}

    def when(self, *, deleting: bool, given: bool) -> Condition:
        return row_lease(self._columns, "delete" if deleting else "update", given=given)

    def clause(self, given: Given) -> ColumnElement[bool]:
        mine, in_force = self._mine(given), self._columns.holder[0]
        if not self._guarded:
            return or_(mine.is_(None), in_force == mine)
        return in_force.is_not_distinct_from(mine)

    def after_look(self, given: Given) -> ColumnElement[bool]:
        """The look has locked the row, so nobody has become the holder since."""
        mine = self._mine(given)
        free = self._columns.free() if self._guarded else true()
        return or_(self._columns.id == mine, and_(mine.is_(None), free))

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        return self._columns.holder

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        mine = params.get(LEASE)
        return bool(seen[0] == mine) or (mine is None and not self._guarded)

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return _Missed(self, params.get(LEASE), seen)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None  # its own miss does

    @staticmethod
    def _mine(given: Given) -> ColumnElement[Any]:
        return given(LEASE, _KIND[LEASE])


class NoLease(RowLease):
    """The same, where the session has leased none: no row has a value of its own."""

    @property
    def each(self) -> Mapping[str, TypeEngine[Any]]:
        return {}

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self._columns.free() if self._guarded else true()

    def after_look(self, given: Given) -> ColumnElement[bool]:
        return self.clause(given)

    @staticmethod
    def _mine(given: Given) -> ColumnElement[Any]:
        return null()


class _Missed(Condition):
    """A condition on a row of which it is known who holds it."""

    def __init__(self, said: RowLease, mine: uuid.UUID | None, seen: Sequence[Any]) -> None:
        self._said, self._mine, self._seen = said, mine, tuple(seen)

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self._said.clause(given)

    def explain(self, entry: Entry[Any]) -> Exception:
        key = entry.identity[0] if len(entry.identity) == 1 else entry.identity
        return refusal(f"{entry.model.__name__} {key!r}", self._mine, self._seen)


def refusal(what: str, mine: Any, seen: Sequence[Any], status: int = 412) -> Exception:
    """What is said to somebody who named ``mine``, while the lease in force is the one ``seen``."""
    holder, since, until = seen
    end = None if until is None or until >= FAR else until
    if mine is None:
        return LeaseHeld(what, "leased", since, end, status)
    if holder is None:
        return LeaseLost(what, "available", status=status)
    return LeaseLost(what, "leased", since, end, status)


def row_lease(columns: LeaseColumns, operation: str, *, given: bool) -> RowLease:
    """The condition on an ``"update"``, or a ``"delete"``, of a row."""
    found: RowLease | None = columns.known.get((operation, given))
    if found is None:
        kind = RowLease if given else NoLease
        found = columns.known[operation, given] = kind(columns, operation)
    return found


class UnderLeases(Demand):
    """What is demanded of every session that writes rows with leases."""

    values: Mapping[str, Any] = {}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        columns = columns_of(mapper)
        return None if columns is None else row_lease(columns, "update", given=False)


UNDER_LEASES = UnderLeases()
