"""One lease for all rows of a class: that of a name.

::

    class Page(Versioned, Base):
        __lease_policy__ = LeasePolicy(all_rows=Name("wiki-pages"))

    lease = acquire(session, Page, 30)    # or Name("wiki-pages")

While somebody holds it, nobody else writes a row of the class, in whatever form; whoever uses the
lease (:mod:`optilock.leases.under`) writes as ever. Each write asks in its own statement::

    EXISTS (SELECT 1 FROM optilock_leases WHERE name = 'wiki-pages' AND nobody holds it FOR SHARE)

The lock is kept until COMMIT, so nobody becomes the holder between a write and its COMMIT; those
who write lock the row together. A row that is not there cannot be locked, so a class whose name has
no row is not written at all: :func:`optilock.leases.prepare` makes it. An INSERT is not asked.

The class need not be ``Leasable``. If it is, the lease of a row and that of all rows both count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, event, literal_column, select, true
from sqlalchemy.orm import Mapper

from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import ConfigurationError, Entry
from optilock.leases.columns import LeaseColumns
from optilock.leases.condition import refusal
from optilock.leases.names import Name, name_of
from optilock.leases.policy import LeasePolicy
from optilock.session.watched import demand_always

__all__ = ["NoHolder"]


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
        return _Missed(self, tuple(seen))

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None  # its own miss does


@dataclass(frozen=True)
class _Missed(Condition):
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
