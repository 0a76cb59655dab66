"""The condition of each write of a row with a lease, and the mixin.

::

    class Page(Leasable, Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
        text: Mapped[str]

The mixin's columns (:mod:`optilock.leases.columns`) are of the table only: objects have no
attributes for them, so entries, comparisons and merges ignore them. They move no version and wake
no guard trigger.

A write that names no lease is for rows without a holder. A write that names one needs it to be in
force; after its end the write is refused, even if the row has no other holder. The conditions in a
session without leases, and in one that has leased some rows::

    lease_until IS NULL OR lease_until <= clock OR lease_id IS NULL
    CASE WHEN lease_until > clock THEN lease_id END IS NOT DISTINCT FROM :lease

The write also stores the id that it names: that of the holder, which is there already, or NULL. So
a lease that has ended cannot be renewed after another session has written the row.

One lease can guard all rows of a class, that of a name::

    class Page(Versioned, Base):
        __lease_policy__ = LeasePolicy(all_rows=Name("wiki-pages"))

    lease = acquire(session, Page, 30)    # or Name("wiki-pages")

While it is in force, only sessions that use it (:mod:`optilock.leases.holders`) write rows of the
class, in each form of write. Each write checks that in its own statement::

    EXISTS (SELECT 1 FROM optilock_leases WHERE name = 'wiki-pages' AND <no holder> FOR SHARE)

The lock is kept until COMMIT, so the name gets no holder between a write and its COMMIT; writers
lock the row together. A row that is not there cannot be locked, so a class whose name has no row is
not written at all: :func:`optilock.leases.prepare` makes it. An INSERT is not checked. The class
need not be ``Leasable``. If it is, the lease of a row and that of all rows both count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeEngine

from optilock._mapped import tokens_of
from optilock._undocumented.mappers import leave_out
from optilock._watched.session.record import demand_always
from optilock.conditions.condition import Condition, Given
from optilock.conditions.demands import Demand
from optilock.errors import ConfigurationError, Entry, row_name
from optilock.leases.columns import (
    LeaseColumns,
    columns_in,
    columns_of,
    lease_names_in,
    new_columns,
    register_columns,
)
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.leases.names import Name, name_of
from optilock.leases.values import FAR, LeasePolicy

#: A row's own value: the id of the lease under which it is written.
LEASE = "lease"


class _LeaseParameter(sa.Uuid[Any]):
    """A write has the id twice, and often that of the row before: it becomes text once."""

    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], Any]:
        """PostgreSQL's dialect has a type of its own in place of this one."""
        process = cast("Callable[[Any], Any]", super().bind_processor(dialect))
        known: tuple[Any, Any] = None, process(None)

        def remembered(value: Any) -> Any:
            nonlocal known
            last, text = known
            if value is not last:
                text = process(value)
                known = value, text
            return text

        return remembered


_KIND: Mapping[str, TypeEngine[Any]] = {
    LEASE: _LeaseParameter().with_variant(_LeaseParameter(native_uuid=False), "mysql", "mariadb")
}


@dataclass(frozen=True, eq=False)
class MissCondition(Condition):
    """A condition on a row that was not written, with the error that explains it."""

    condition: Condition
    error: Callable[[Entry[Any]], Exception]

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        return self.condition.clause(given)

    def explain(self, entry: Entry[Any]) -> Exception:
        return self.error(entry)


class ExplainedByMiss:
    """Of a condition that has an error only for a row that was looked at after a miss."""

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None


def label_of(entry: Entry[Any]) -> str:
    """Return "Page 7"."""
    return row_name(entry.model, entry.identity)


class RowLease(ExplainedByMiss, Condition):
    """The condition on rows of one table, in a session that has leased some."""

    def __init__(self, columns: LeaseColumns, operation: str) -> None:
        self._columns, self._operation = columns, operation
        self._guarded = operation in columns.policy.guards

    @property
    def row_parameters(self) -> Mapping[str, TypeEngine[Any]]:
        return _KIND

    def extra_values(self, given: Given) -> Mapping[sa.Column[Any], sa.ColumnElement[Any]]:
        takes_away = self._guarded and self._operation == "update"
        return {self._columns.id: self._mine(given)} if takes_away else {}

    def for_operation(self, *, deleting: bool, given: bool) -> Condition:
        return lease_condition(self._columns, "delete" if deleting else "update", given=given)

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        mine, in_force = self._mine(given), self._columns.in_force[0]
        if not self._guarded:
            return sa.or_(mine.is_(None), in_force == mine)
        return in_force.is_not_distinct_from(mine)

    def after_look(self, given: Given) -> sa.ColumnElement[bool]:
        """The look has locked the row, so its holder is still the same."""
        mine = self._mine(given)
        free = self._columns.free() if self._guarded else sa.true()
        return sa.or_(self._columns.id == mine, sa.and_(mine.is_(None), free))

    @property
    def looks(self) -> tuple[sa.ColumnElement[Any], ...]:
        return self._columns.in_force

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        mine = params.get(LEASE)
        return bool(seen[0] == mine) or (mine is None and not self._guarded)

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return MissCondition(self, lambda entry: refusal(label_of(entry), params.get(LEASE), seen))

    @staticmethod
    def _mine(given: Given) -> sa.ColumnElement[Any]:
        return given(LEASE, _KIND[LEASE])


class NoLease(RowLease):
    """The condition in a session that has leased none of the rows."""

    @property
    def row_parameters(self) -> Mapping[str, TypeEngine[Any]]:
        return {}

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        return self._columns.free() if self._guarded else sa.true()

    def after_look(self, given: Given) -> sa.ColumnElement[bool]:
        return self.clause(given)

    @staticmethod
    def _mine(given: Given) -> sa.ColumnElement[Any]:
        return sa.null()


def refusal(what: str, mine: Any, seen: Sequence[Any], status: int = 412) -> Exception:
    """Return the error of a write that named ``mine``, while the lease ``seen`` is in force."""
    lease, since, until, holder = seen
    end = None if until is None or until >= FAR else until
    if mine is None:
        return LeaseHeld(what, "leased", since, end, status, holder)
    if lease is None:
        return LeaseLost(what, "available", status=status)
    return LeaseLost(what, "leased", since, end, status)


def lease_condition(columns: LeaseColumns, operation: str, *, given: bool) -> RowLease:
    """Return the condition on an ``"update"``, or a ``"delete"``, of a row."""
    found: RowLease | None = columns.known.get((operation, given))
    if found is None:
        kind = RowLease if given else NoLease
        found = columns.known[operation, given] = kind(columns, operation)
    return found


class LeaseDemand(Demand):
    """The demand of each session that writes rows with leases."""

    values: Mapping[str, Any] = {}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        columns = columns_of(mapper)
        return None if columns is None else lease_condition(columns, "update", given=False)


LEASE_DEMAND = LeaseDemand()


@dataclass(frozen=True)
class NoHolder(ExplainedByMiss, Condition):
    """The name has no holder, and gets none before COMMIT."""

    name: Name
    guards: tuple[str, ...]
    deleting: bool = False

    def for_operation(self, *, deleting: bool, given: bool) -> Condition:
        return replace(self, deleting=deleting)

    @property
    def _guarded(self) -> bool:
        return ("delete" if self.deleting else "update") in self.guards

    @property
    def _columns(self) -> LeaseColumns:
        return self.name.within.columns

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        if not self._guarded:
            return sa.true()
        return self._there(sa.literal_column("1")).where(self._columns.free()).exists()

    @property
    def looks(self) -> tuple[sa.ColumnElement[Any], ...]:
        """The fence, which is NULL without the row, and the lease in force."""
        if not self._guarded:
            return ()
        every = (self._columns.fence, *self._columns.in_force)
        return tuple(self._there(one).scalar_subquery() for one in every)

    def _there(self, look: sa.ColumnElement[Any]) -> sa.Select[Any]:
        key = self._columns.table.c.name
        name: sa.ColumnElement[str] = sa.bindparam(None, self.name.name, type_=key.type)
        return sa.select(look).where(key == name).with_for_update(read=True)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return not self._guarded or (seen[0] is not None and seen[1] is None)

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return MissCondition(self, lambda entry: self._error(entry, *seen))

    def _error(self, entry: Entry[Any], fence: int | None, *lease: Any) -> Exception:
        model, name = entry.model.__name__, self.name
        if fence is not None:
            return refusal(f"all rows of {model} (the name {name.name!r})", None, lease)
        return ConfigurationError(
            f"{model} is guarded by the lease of the name {name.name!r}, which has no row in the"
            f" table {name.within.table} yet, so nothing could keep others from acquiring it while"
            f" rows are written. Call optilock.leases.prepare(session, {model}) once, as in a"
            " migration. Nothing was written."
        )


class _Names(Demand):
    """The demand of each session that writes rows of a class with such a name."""

    values: Mapping[str, Any] = {}

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        name = name_of(mapper.class_)
        if name is None:
            return None
        guards: Any = mapper.class_.__lease_policy__.guards
        return NoHolder(name, tuple(sorted(guards)))


_ALWAYS = _Names()


@sa.event.listens_for(Mapper, "instrument_class")
def _guard(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Demand the condition for rows of the class, if it has a name for all of them.

    Raises:
        ConfigurationError: it is not a name, or not that of the whole hierarchy.
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
    """Return the policy of a class that has a name for all rows."""
    policy = getattr(cls, "__lease_policy__", None)
    has_one = isinstance(policy, LeasePolicy) and policy.all_rows is not None
    return policy if has_one else None


# -- the mixin -------------------------------------------------------------------------------------

_USUAL = LeasePolicy()


class Leasable:
    """Mixin: a row of the class can be leased."""

    __lease_policy__: ClassVar[LeasePolicy] = _USUAL


@sa.event.listens_for(Leasable, "instrument_class", propagate=True)
def _give_columns(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Put the columns on the table before the mapper looks at it, and keep them out of the class.

    Raises:
        ConfigurationError: rows of the class cannot have leases.
    """
    policy = cls.__lease_policy__
    if not isinstance(policy, LeasePolicy):
        raise ConfigurationError(
            f"{cls.__name__}.__lease_policy__ is {policy!r}: write LeasePolicy(longest=300)."
        )
    token, _ = tokens_of(cls)
    if token is not None and token.every_write:
        raise ConfigurationError(
            f"{cls.__name__} is Leasable, but a {type(token).__name__} is moved by every UPDATE of"
            " the row, so a lease would change its version and its ETag. Use Counter(), Unique() or"
            " Timestamp()."
        )
    table = mapper.local_table
    parent = mapper.inherits
    if parent is not None and not mapper.concrete:
        _inherit(mapper, cls, parent, policy)
    elif not isinstance(table, sa.Table):
        raise ConfigurationError(
            f"{cls.__name__} is Leasable, but is mapped to a SELECT: map the table itself."
        )
    elif columns_in(table) is None:
        taken = lease_names_in(table.columns.keys())
        if taken:
            raise ConfigurationError(
                f"{cls.__name__} is Leasable, and its table {table.name} has a column {taken[0]!r}"
                " of its own, which would be the lease's: give that column another name."
            )
        for column in new_columns():
            table.append_column(column)
        register_columns(table, policy)
    demand_always(LEASE_DEMAND)
    leave_out(mapper, [column for column in _of(mapper).columns if lease_names_in([column.key])])


def _inherit(mapper: Mapper[Any], cls: type[Any], parent: Mapper[Any], policy: LeasePolicy) -> None:
    above = columns_in(_of(mapper))
    if above is None:
        raise ConfigurationError(
            f"{cls.__name__} is Leasable, and {parent.class_.__name__} is not: put the mixin on"
            f" {mapper.base_mapper.class_.__name__}, whose row stands for the whole."
        )
    if policy is not above.policy:
        raise ConfigurationError(
            f"{cls.__name__} has a __lease_policy__ beside the one that it inherits: a row has one"
            f" lease, so say it on {mapper.base_mapper.class_.__name__} only."
        )


def _of(mapper: Mapper[Any]) -> Any:
    """Return the table that has the lease of the whole row."""
    return mapper.local_table if mapper.concrete else mapper.base_mapper.local_table
