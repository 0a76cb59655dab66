"""Demands of a session: conditions on every row that it writes.

::

    class Holder(Part, Demand):
        def __init__(self, me: str) -> None:
            self.values = {"holder": me}

        def on(self, mapper: Mapper[Any]) -> Condition | None:
            column = mapper.columns.get("holder")
            return None if column is None else HeldBy(column)

        def begin(self, session: Session) -> None:
            demand(session, self)

    with unit_of_work(sessions, parts=[Holder("me")]) as session: ...

A demand returns the condition for each class once, and carries the values, which are the same for
all rows. It is part of every write of the session: rows of a flush in every form, deletes,
``update()`` and ``delete()`` statements, ``bulk_update``. A row that fails it is left unchanged,
and the exception of ``explain`` is raised before any resolver is called.

A demand may have values that each row has of its own (``row_parameters``). The session gives them
for some rows (:meth:`Demands.give_row_values`), and for all others they are NULL.
:func:`register_for_all_sessions` adds what a class demands of every session.

Sessions that write no row of such a class pay nothing. Whether a class is concerned is a fact of
its mapper. A statement of another table, and a text without the name of such a table, are not
examined further.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine

from optilock._mapped import Identity, Place, all_mappers, facts
from optilock._undocumented.mappers import keep_with_mapping
from optilock.conditions.condition import (
    Condition,
    Given,
    parameter,
    parameter_name,
    parameters,
)
from optilock.conditions.write import Shape, Write, write_of
from optilock.errors import ConfigurationError, Entry

Conditions = tuple[Condition, ...]
Rows = dict[Identity, Mapping[str, Any]]
#: A shape with the demands, the default parameters, and the parameters by row.
_Under = tuple[Shape, Mapping[str, Any], Rows | None]
#: A shape with the demands, the default parameters, whether rows may have their own, and the
#: parameter of a key of one column; by the shape, and whether no row of it has its own.
_Alike = dict[tuple[Shape, bool], tuple[Shape, Mapping[str, Any], bool, str | None]]


class Demand:
    """One demand; ``values`` are the values that its conditions ask for, by name."""

    values: Mapping[str, Any]

    def on(self, mapper: Mapper[Any]) -> Condition | None:
        """Return the condition on rows of the class; ``None``: there is none."""
        raise NotImplementedError  # every demand has its own

    def replaces(self, standing: Condition) -> bool:
        """Return whether this demand includes ``standing``, which a class demands of every session.

        Then it is not asked beside the condition on rows of that class.
        """
        return False


#: Demands of classes on every session.
_standing: list[Demand] = []


#: Of a mapper whose classes are not concerned: the demands that do not apply. Read for each row.
FREE = "optilock_free"
#: Of a mapper with its own hierarchy: its shapes with the standing demands. Read for each row.
_UNDER = "optilock_under"
_NOTHING: _Alike = {}


class _Tables(NamedTuple):
    """Tables of classes that demand something of every session."""

    names: frozenset[str]
    #: Finds any of the names in a text.
    anywhere: re.Pattern[str]


#: Read when they are first asked for after a class was mapped: seldom, and once for all sessions.
_tables: _Tables | None = None


def _standing_tables() -> _Tables:
    global _tables
    if _tables is None:
        concerned = (mapper for mapper in all_mappers() if _standing_on(mapper, None))
        tables = {table for mapper in concerned for table in mapper.tables}
        names = sorted(table.name.lower() for table in tables if isinstance(table, sa.Table))
        anywhere = "|".join(map(re.escape, names)) or "(?!)"
        _tables = _Tables(frozenset(names), re.compile(anywhere, re.IGNORECASE))
    return _tables


def _mapped_one_more(mapper: Mapper[Any], cls: type[Any]) -> None:
    global _tables
    _tables = None


def _standing_on(
    mapper: Mapper[Any], table: Any, *, deleting: bool = False, given: bool = False
) -> tuple[Condition, ...]:
    """These, on rows of the class: the same for every session."""
    shapes, place = facts(mapper).shapes, ("standing", table, deleting, given)
    found: tuple[Condition, ...] | None = shapes.get(place)
    if found is None:
        every = (_condition_of(demand, mapper) for demand in _standing)
        asked = [
            one.for_operation(deleting=deleting, given=given) for one in every if one is not None
        ]
        found = shapes[place] = tuple(_said_of(one, mapper, table) for one in asked)
    return found


def register_for_all_sessions(demand: Demand) -> bool:
    """From here on every session has the demand, before its own; ``False``: it has it already."""
    if demand in _standing:
        return False
    if not _standing:
        sa.event.listen(Mapper, "after_mapper_constructed", _mapped_one_more)
    _standing.append(demand)
    return True


class Demands:
    """All demands of a session."""

    def __init__(self) -> None:
        self._all: list[Demand] = []
        self._values: dict[str, Any] = {}
        self._on: dict[tuple[Mapper[Any], Any, bool], Conditions] = {}
        self._concerns: dict[Mapper[Any], bool] = {}
        #: By hierarchy and key: the values that a row has of its own, as parameters of statements.
        self._rows: dict[Mapper[Any], Rows] = {}
        #: Writes under the conditions, where rows have values of their own.
        self._under: dict[tuple[Shape, Mapper[Any]], _Under] = {}
        self._alike: _Alike = {}
        #: The values as parameters of statements.
        self.params: dict[str, Any] = {}

    def add(self, demand: Demand) -> None:
        """From here on it is demanded, too.

        Raises:
            ConfigurationError: it is none, has no values, or names one as another demand does.
        """
        _check(demand)
        taken = self._values.keys() & demand.values.keys()
        if taken:
            raise ConfigurationError(
                f"{type(demand).__name__} names a value {min(taken)!r}, and so does another demand"
                " of the session: give it a name of its own, in values= and in clause()."
            )
        self._all.append(demand)
        self._values |= demand.values
        self._on, self._concerns, self._under, self._alike = {}, {}, {}, {}
        self.params = parameters(self._values)

    def give_row_values(self, place: Place, values: Mapping[str, Any]) -> None:
        """From here on these are the values that one row has of its own."""
        root, identity = place
        if root not in self._rows:
            self._rows[root], self._on, self._under = {}, {}, {}
        self._rows[root][identity] = parameters(values)

    def conditions_for(
        self, mapper: Mapper[Any], table: Any = None, *, deleting: bool = False
    ) -> Conditions:
        """Return the conditions on rows of the class, written for a statement of ``table``."""
        if not self._all and not self._rows:  # the one of all sessions, which keeps no classes
            return _standing_on(mapper, table, deleting=deleting, given=False)
        found = self._on.get((mapper, table, deleting))
        if found is None:
            given = bool(self._rows) and facts(mapper).root in self._rows
            found = _standing_on(mapper, table, deleting=deleting, given=given)
            if self._all:
                every = (_condition_of(demand, mapper) for demand in self._all)
                asked = [one.for_operation(deleting=deleting, given=given) for one in every if one]
                still = (one for one in found if not self._is_replaced(one))
                found = (*still, *(_said_of(one, mapper, table) for one in asked))
            self._on[mapper, table, deleting] = found
        return found

    def _is_replaced(self, standing: Condition) -> bool:
        return any(demand.replaces(standing) for demand in self._all)

    def concerns_class(self, mapper: Mapper[Any]) -> bool:
        """Return whether rows of the class, or of others of its hierarchy, have a demand."""
        known: dict[Any, Any] = self._concerns if self._all else facts(mapper).shapes
        found: bool | None = known.get(mapper)
        if found is None:
            hierarchy = mapper.base_mapper.self_and_descendants
            found = known[mapper] = any(self.conditions_for(one) for one in hierarchy)
        if not found and not self._all:
            keep_with_mapping(mapper, FREE, self)
        return found

    def may_concern_table(self, table: Any) -> bool:
        """Return whether a demand may concern rows of the table. A cheap check."""
        return bool(self._all) or table.name.lower() in _standing_tables().names

    def may_be_named_in(self, sql: str) -> bool:
        """Return whether the text may name such a table. A cheap check."""
        return bool(self._all) or _standing_tables().anywhere.search(sql) is not None

    def cached_with_demands(self, write: Write) -> Write | None:
        """As :meth:`with_shared_demands` has said of an earlier row; ``None``: it was not asked."""
        shape, params = write
        rows = self._rows.get(shape.mapper) if self._rows else None
        alike = self._alike if self._all else shape.mapper.__dict__.get(_UNDER, _NOTHING)
        known = alike.get((shape, rows is None))
        if known is None:
            return None
        under, given, each, key = known
        if under is shape:
            return write
        if rows is not None and each:
            own = rows.get((params[key],) if key is not None else shape.identity_of(params))
            if own is not None:
                return write_of((under, {**params, **given, **own}))
        return write_of((under, {**params, **given} if given else params))

    def with_shared_demands(self, write: Write) -> Write:
        """Return the write under the demands of a class whose rows all have the same conditions.

        :meth:`cached_with_demands` then answers for the next row. The class is the only one of its
        hierarchy, so the conditions depend on no object. Where the session has only the demands
        of all sessions, the next row may be another session's.
        """
        shape, mapper = write.shape, write.shape.mapper
        under, given, _ = self._made(shape, mapper)
        key = shape.keys[0].parameter if len(shape.keys) == 1 else None
        alike = self._alike
        if not self._all:
            alike = mapper.__dict__.get(_UNDER) or keep_with_mapping(mapper, _UNDER, {})
        alike[shape, mapper not in self._rows] = under, given, bool(under.row_parameters), key
        return self.cached_with_demands(write) or write

    def with_demands(self, write: Write, mapper: Mapper[Any]) -> Write:
        """The same write, of a row of the class, under these conditions."""
        shape, params = write
        if not self._rows:
            more = self.conditions_for(mapper, shape.table, deleting=shape.deletes)
            if not more:
                return write
            under = shape.with_conditions(more)
            return write_of((under, {**params, **self.params} if self.params else params))
        known = self._under.get((shape, mapper))
        if known is None:
            known = self._under[shape, mapper] = self._made(shape, mapper)
        under, given, rows = known
        if under is shape:
            return write
        own = rows.get(shape.identity_of(params), given) if rows else given
        return write_of((under, {**params, **own} if own is given else {**params, **given, **own}))

    def with_demands_of_both(self, write: Write, mapper: Mapper[Any]) -> Write:
        """The UPDATE that SQLAlchemy sends for the DELETE and the INSERT of one key: as both."""
        shape, params = write
        more = [self.conditions_for(mapper, shape.table, deleting=one) for one in (True, False)]
        under = replace(
            shape.with_conditions(tuple(dict.fromkeys(more[0] + more[1]))), replaces=True
        )
        own = self.values_of_row(mapper, shape.identity_of(params))
        return write_of((under, {**params, **under.null_parameters, **own}))

    def _made(self, shape: Shape, mapper: Mapper[Any]) -> _Under:
        under = shape.with_conditions(
            self.conditions_for(mapper, shape.table, deleting=shape.deletes)
        )
        rows = self._rows.get(facts(mapper).root) if under.row_parameters else None
        return under, {**self.params, **under.null_parameters}, rows

    def values_of_row(self, mapper: Mapper[Any], identity: Identity) -> Mapping[str, Any]:
        """The values, and those that the row has of its own, as parameters."""
        rows = self._rows.get(facts(mapper).root)
        own = None if rows is None else rows.get(identity)
        return self.params if own is None else {**self.params, **own}

    def values_for(self, mapper: Mapper[Any], keys: Sequence[sa.ColumnElement[Any]]) -> Given:
        """The values for a statement whose parameters are not ours, of rows with these keys."""

        def bound(name: str, kind: TypeEngine[Any]) -> sa.ColumnElement[Any]:
            if name in self._values:
                return sa.bindparam(None, self._values[name], type_=kind)
            rows = self._rows.get(facts(mapper).root, {})
            own = [
                (
                    sa.and_(*(key == one for key, one in zip(keys, identity, strict=True))),
                    sa.bindparam(None, values.get(parameter_name(name)), type_=kind),
                )
                for identity, values in rows.items()
            ]
            nothing = sa.bindparam(None, None, type_=kind)
            return sa.case(*own, else_=nothing) if own else nothing

        return bound


@dataclass(frozen=True)
class _InOtherTables(Condition):
    """A condition on columns that the row of ``table`` has in other tables (joined inheritance)."""

    said: Condition
    table: sa.Table
    others: tuple[sa.Table, ...]
    _judges: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # values that each row has of its own are no parameters of a look at many
        object.__setattr__(self, "exact", self.said.exact)
        object.__setattr__(self, "_judges", self.said.exact and not self.said.row_parameters)

    @property
    def row_parameters(self) -> Mapping[str, TypeEngine[Any]]:
        return self.said.row_parameters

    def clause(self, given: Given) -> sa.ColumnElement[bool]:
        return self._there(sa.literal_column("1")).where(self.said.clause(given)).exists()

    def after_look(self, given: Given) -> sa.ColumnElement[bool]:
        return self._there(sa.literal_column("1")).where(self.said.after_look(given)).exists()

    @property
    def looks(self) -> tuple[sa.ColumnElement[Any], ...]:
        if self._judges:
            return super().looks
        return tuple(self._there(look).scalar_subquery() for look in self.said.looks)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return super().holds(params, seen) if self._judges else self.said.holds(params, seen)

    def missed(self, params: Mapping[str, Any], seen: Sequence[Any]) -> Condition:
        return self if self._judges else self.said.missed(params, seen)

    def _there(self, look: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Read in the other tables, of the same row."""
        same = [
            ours == theirs
            for other in self.others
            for ours, theirs in zip(self.table.primary_key, other.primary_key, strict=True)
        ]
        found = sa.select(look).select_from(*self.others).correlate(self.table).where(*same)
        # locked: a plain read may show the snapshot's row (MariaDB at REPEATABLE READ)
        return found.with_for_update(read=True)

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return self.said.explain(entry)


def _condition_of(demand: Demand, mapper: Mapper[Any]) -> Condition | None:
    """Return the demand's condition on rows of the class; called once per class.

    Raises:
        ConfigurationError: it is no condition, or one that nothing could be kept by.
    """
    found = demand.on(mapper)
    if found is None:
        return None
    name = f"{type(demand).__name__}.on({mapper.class_.__name__})"
    if not isinstance(found, Condition):
        raise ConfigurationError(f"{name} gives a {type(found).__name__}, and no Condition.")
    params = getattr(found, "__dataclass_params__", None)
    try:
        hash(found)
        why = "" if params is None or params.frozen else "may be changed"
    except TypeError as error:
        why = f"cannot be kept ({error})"
    if why:
        raise ConfigurationError(
            f"{name} gives a {type(found).__name__} that {why}: write @dataclass(frozen=True) over"
            f" class {type(found).__name__}, with fields that are hashable, tuples and no lists."
            " Nothing was sent."
        )
    return found


def _said_of(condition: Condition, mapper: Mapper[Any], table: Any) -> Condition:
    """Made once: a session asks it of each class, and has the same conditions as others."""
    if table is None:
        return condition
    shapes, place = facts(mapper).shapes, ("said", condition, table)
    found: Condition | None = shapes.get(place)
    if found is None:
        found = shapes[place] = _as_said(condition, mapper, table)
    return found


def _as_said(condition: Condition, mapper: Mapper[Any], table: Any) -> Condition:
    named = {
        one.table
        for one in visitors.iterate(condition.clause(parameter))
        if isinstance(one, sa.Column) and one.table is not table
    }
    others = tuple(one for one in mapper.tables if one in named and isinstance(one, sa.Table))
    return _InOtherTables(condition, table, others) if others else condition


def _check(demand: Any) -> None:
    if not isinstance(demand, Demand) or type(demand).on is Demand.on:
        raise ConfigurationError(
            f"{demand!r} is no demand: write a subclass of optilock.conditions.Demand with"
            " on(mapper), which returns a Condition or None, and with values,"
            " a mapping of names to values."
        )
    values = getattr(demand, "values", None)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ConfigurationError(
            f"{type(demand).__name__} has no values: write self.values = {{'name': value}}, with"
            " the names that clause() asks for; {} if it asks for none."
        )
