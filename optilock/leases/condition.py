"""Under which lease a row may be written: one condition of the write itself.

Whoever names no lease writes a row that nobody has leased; whoever names one writes only while it
is in force, so that a holder whose lease has ended is refused also where nobody has taken over. In
a session that has leased none of the rows, and in one that has leased some::

    lease_until IS NULL OR lease_until <= clock OR lease_id IS NULL
    CASE WHEN lease_until > clock THEN lease_id END IS NOT DISTINCT FROM :lease

The same write stores the id that it names: that of the holder, which is there already, or NULL. So
a lease that has ended cannot be renewed after another session has written the row.

One lease can guard all rows of a class, that of a name::

    class Page(Versioned, Base):
        __lease_policy__ = LeasePolicy(all_rows=Name("wiki-pages"))

    lease = acquire(session, Page, 30)    # or Name("wiki-pages")

While it is in force, only sessions that use it (:mod:`optilock.leases.under`) write rows of the
class, in whatever form. Each write checks that in its own statement::

    EXISTS (SELECT 1 FROM optilock_leases WHERE name = 'wiki-pages' AND <no holder> FOR SHARE)

The lock is kept until COMMIT, so the name gets no holder between a write and its COMMIT; writers
lock the row together. A row that is not there cannot be locked, so a class whose name has no row is
not written at all: :func:`optilock.leases.prepare` makes it. An INSERT is not checked. The class
need not be ``Leasable``. If it is, the lease of a row and that of all rows both count.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    and_,
    bindparam,
    event,
    literal_column,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import ConfigurationError, Entry
from optilock.leases.columns import FAR, LEASE_ID, LeaseColumns, columns_of
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.leases.names import Name, name_of
from optilock.leases.policy import LeasePolicy
from optilock.watched.session.watched import demand_always

__all__ = ["LEASE", "UNDER_LEASES", "NoHolder", "refusal"]

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


@dataclass(frozen=True)
class NoHolder(Condition):
    """Nobody holds the name, and nobody becomes its holder before COMMIT."""

    name: Name
    guards: tuple[str, ...]
    deleting: bool = False

    def when(self, *, deleting: bool, given: bool) -> Condition:
        return replace(self, deleting=deleting)

    @property
    def _guarded(self) -> bool:
        return ("delete" if self.deleting else "update") in self.guards

    @property
    def _columns(self) -> LeaseColumns:
        return self.name.within.columns

    def clause(self, given: Given) -> ColumnElement[bool]:
        if not self._guarded:
            return true()
        return self._there(literal_column("1")).where(self._columns.free()).exists()

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        """The fence, which says that the row is there, and who holds it."""
        if not self._guarded:
            return ()
        every = (self._columns.fence, *self._columns.holder)
        return tuple(self._there(one).scalar_subquery() for one in every)

    def _there(self, look: ColumnElement[Any]) -> Select[Any]:
        key = self._columns.table.c.name
        name: ColumnElement[str] = bindparam(None, self.name.name, type_=key.type)
        return select(look).where(key == name).with_for_update(read=True)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return not self._guarded or (seen[0] is not None and seen[1] is None)

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return _MissedRows(self, tuple(seen))

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None  # its own miss does


@dataclass(frozen=True)
class _MissedRows(Condition):
    """The same, of a row that was not written: who holds the name is known."""

    said: NoHolder
    seen: tuple[Any, ...]

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.said.clause(given)

    def explain(self, entry: Entry[Any]) -> Exception:
        model, name = entry.model.__name__, self.said.name
        fence, *holder = self.seen
        if fence is not None:
            return refusal(f"all rows of {model} (the name {name.name!r})", None, holder)
        return ConfigurationError(
            f"{model} is guarded by the lease of the name {name.name!r}, which has no row in the"
            f" table {name.within.table} yet, so nothing could keep others from acquiring it while"
            f" rows are written. Call optilock.leases.prepare(session, {model}) once, as in a"
            " migration. Nothing was written."
        )


class _Names(Demand):
    """What is demanded of every session that writes rows of a class with such a name."""

    values: Mapping[str, Any] = {}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        name = name_of(mapper.class_)
        if name is None:
            return None
        guards: Any = mapper.class_.__lease_policy__.guards
        return NoHolder(name, tuple(sorted(guards)))


_ALWAYS = _Names()


@event.listens_for(Mapper, "instrument_class")
def _guard(mapper: Mapper[Any], cls: type[Any]) -> None:
    """From here on its rows are asked for, if the class has a name for all of them.

    Raises:
        ConfigurationError: it is none, or is not that of the whole hierarchy.
    """
    policy = _policy_of(cls)
    if policy is not None and name_of(cls) is None:
        raise ConfigurationError(
            f"{cls.__name__}.__lease_policy__ has all_rows={policy.all_rows!r}: write"
            " LeasePolicy(all_rows=Name('...'))."
        )
    above = None if mapper.concrete else mapper.inherits
    if above is not None and policy is not _policy_of(above.class_):
        raise ConfigurationError(
            f"{cls.__name__} has a __lease_policy__ with all_rows beside that of"
            f" {above.class_.__name__}: their rows are in the same tables, so say it on"
            f" {mapper.base_mapper.class_.__name__} only."
        )
    if policy is not None:
        demand_always(_ALWAYS)


def _policy_of(cls: type[Any]) -> LeasePolicy | None:
    """What it says of its leases, if it has a name for all rows."""
    policy = getattr(cls, "__lease_policy__", None)
    has_one = isinstance(policy, LeasePolicy) and policy.all_rows is not None
    return policy if has_one else None
