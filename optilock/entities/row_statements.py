"""The one statement that writes a row by its key, and the source of the row's new version.

A statement is made once for each class, database and set of columns, and kept. Python makes the new
version wherever it can: from the one expected version, or at random. Otherwise SQL makes it, and it
comes back by RETURNING, by ``LAST_INSERT_ID()`` in the answer of MariaDB (which has no RETURNING
for an UPDATE), or by a SELECT afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, ColumnElement, Connection, Integer, Table, and_, bindparam
from sqlalchemy.orm import Mapper

from optilock._mapped import Identity, facts
from optilock._watched.statements.version import next_version_values
from optilock._watched.writes.shapes import shape_of
from optilock.conditions.condition import Condition, Given, Match, parameter
from optilock.conditions.write import Shape
from optilock.dialects import database_of
from optilock.errors import Entry

KEY, EXPECTED = "optilock_key_", "optilock_expected"


@dataclass(frozen=True)
class Change:
    """A write of one row."""

    mapper: Mapper[Any]
    identity: Identity
    #: Attribute -> new value.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Attribute -> SQL of its new value: always the same for an attribute.
    computed: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    #: The row must be in one of these versions; ``None``: in any.
    versions: tuple[Any, ...] | None = None
    deletes: bool = False
    #: The version stays: only ignored columns get a value.
    still: bool = False
    #: The new version, if it is made from the values of the row or from the request.
    made: Any = None
    #: Returns whether this very change made a version, when it was sent before.
    is_ours: Callable[[Any], bool] | None = None
    #: The database may store the key as another value; then it returns the stored one.
    respelled: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Whether it sets no column, deletes nothing, and need not be known when it comes again."""
        return not (self.values or self.computed or self.deletes or self.is_ours)

    @property
    def only_version(self) -> Any:
        """The one version that the row must be in; ``None`` if there are several or none."""
        versions = self.versions
        return versions[0] if versions is not None and len(versions) == 1 else None


@dataclass(frozen=True)
class _AnyOf(Condition):
    """The row holds one of the values that the write carries in ``parameter``."""

    column: Column[Any]
    parameter: str

    def clause(self, given: Given) -> ColumnElement[bool]:
        return self.column.in_(bindparam(self.parameter, expanding=True, type_=self.column.type))

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        return (self.column,)

    def holds(self, params: Mapping[str, Any], seen: Sequence[Any]) -> bool:
        return seen[0] in params[self.parameter]

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None


@dataclass(frozen=True)
class RowStatement:
    """A statement, and the source of the row's new version."""

    shape: Shape
    #: Python makes it.
    makes: bool
    #: RETURNING has it.
    returns: bool = False
    #: ``lastrowid`` is the version.
    by_lastrowid: bool = False
    #: RETURNING has the key too.
    returns_key: bool = False

    @property
    def needs_select(self) -> bool:
        """A SELECT reads it afterwards."""
        return not (self.makes or self.returns or self.by_lastrowid)


_forms: WeakKeyDictionary[Mapper[Any], dict[Any, RowStatement]] = WeakKeyDictionary()


def statement_of(connection: Connection, change: Change) -> RowStatement:
    """Return the kept statement for a change, or make it."""
    dialect = connection.dialect
    versions = change.versions
    place = (
        dialect.name,
        dialect.driver,
        change.deletes,
        change.still,
        change.made is not None,
        change.respelled,
        -1 if versions is None else min(len(versions), 2),
        frozenset(change.values),
        frozenset(change.computed),
    )
    forms = _forms.setdefault(change.mapper, {})
    found = forms.get(place)
    if found is None:
        found = forms[place] = _Maker(connection, change).form()
    return found


class _Maker:
    """Makes the statement of a change, for all changes of its kind."""

    def __init__(self, connection: Connection, change: Change) -> None:
        self.change, self.mapper, self.dialect = change, change.mapper, connection.dialect
        self.database, self.known = database_of(self.dialect), facts(change.mapper)
        kind = self.known.kind
        #: A trigger makes the version after RETURNING has read the row.
        self.too_early = (
            kind is not None and kind.has_trigger and self.database.one_row.returns_before_triggers
        )
        self.by_python = callable(self.mapper.version_id_generator)
        self.stays = change.still and not (kind is not None and kind.every_write)
        self.makes = self._is_made_here()
        self.returns = not self.makes and self.dialect.update_returning and not self.too_early

    def _is_made_here(self) -> bool:
        """Return whether Python has the new version, or makes it, before the statement is sent."""
        change = self.change
        if change.deletes or change.made is not None:
            return True
        if change.only_version is not None and (self.by_python or self.stays):
            return True
        return self.by_python and not self.stays and ignores_previous_version(self.mapper)

    def form(self) -> RowStatement:
        change, version = self.change, self.known.version
        sets, by_lastrowid = self._sets()
        conditions = _conditions(change, version)
        of_class = _of_class(self.mapper)
        statement = self._statement().where(
            *self._keys(),
            *(one.clause(parameter) for one in conditions),
            *([] if of_class is None else [of_class]),
        )
        if sets:
            statement = statement.values(sets)
        returning = self._returning()
        if returning:
            statement = statement.returning(*returning)
        shape = replace(
            self._shape(),
            statement=statement,
            group=statement,
            conditions=conditions,
            prefetch=(),
            postfetch=(),
            ignored_only=self.stays,
            forms={},
        )
        return RowStatement(
            shape, self.makes, self.returns, by_lastrowid, len(returning) > self.returns
        )

    def _sets(self) -> tuple[dict[Any, Any], bool]:
        """Return the columns that SQL sets, and whether ``lastrowid`` is the new version."""
        change, version = self.change, self.known.version
        sets: dict[Any, Any] = {
            self.known.columns[name]: sql for name, sql in change.computed.items()
        }
        if self.stays:
            sets[version] = version
        if self.stays or change.deletes or self.makes:
            return sets, False
        if self.by_python:
            sets |= next_version_values(self.mapper)
        elif not change.values:
            sets |= self.known.touch
        if self.returns or not self.by_python or not isinstance(version.type, Integer):
            return sets, False
        told = self.database.one_row.telling(sets[version]) if version in sets else None
        return (sets, False) if told is None else ({**sets, version: told}, True)

    def _returning(self) -> list[Any]:
        dialect, deletes = self.dialect, self.change.deletes
        found: list[Any] = [self.known.version] if self.returns else []
        can_return = dialect.delete_returning if deletes else dialect.update_returning
        if self.change.respelled and can_return and (self.returns or not self.too_early):
            found += [_in(self.known.table, key) for key in self.mapper.primary_key]
        return found

    def _statement(self) -> Any:
        table: Table = self.known.table
        return table.delete() if self.change.deletes else table.update()

    def _keys(self) -> list[ColumnElement[bool]]:
        return [
            _in(self.known.table, key) == bindparam(f"{KEY}{i}", type_=key.type)
            for i, key in enumerate(self.mapper.primary_key)
        ]

    def _shape(self) -> Shape:
        change, version = self.change, self.known.version
        made = self.makes and not change.deletes and not self.stays
        expected = version == bindparam(EXPECTED, type_=version.type)
        statement = self._statement().where(and_(*self._keys(), expected))
        names = frozenset(_named(change, made=made))
        shape = shape_of(statement, names, self.mapper, self.dialect)
        assert shape is not None
        return shape


def ignores_previous_version(mapper: Mapper[Any]) -> bool:
    """Return whether the next version is made without the previous one (``Unique``)."""
    kind = facts(mapper).kind
    if kind is not None:
        return kind.is_made_anew
    made: Any = mapper.version_id_generator
    first = made(None)
    return bool(first != made(None))


def _conditions(change: Change, version: Column[Any]) -> tuple[Condition, ...]:
    match change.versions:
        case None | ():
            return ()
        case (_,):
            return (Match(version, EXPECTED),)
        case _:
            return (_AnyOf(version, EXPECTED),)


def _of_class(mapper: Mapper[Any]) -> ColumnElement[bool] | None:
    """Return the condition of the class's own rows, if several classes share the table."""
    if not mapper.single:
        return None
    column: Any = mapper.polymorphic_on
    return column.in_([one.polymorphic_identity for one in mapper.self_and_descendants])  # type: ignore[no-any-return]


def _in(table: Table, key: Any) -> Any:
    """Return the key's column in the table that has the version."""
    return key if key.table is table else next(iter(table.primary_key.columns))


def _named(change: Change, *, made: bool) -> dict[str, Any]:
    known = facts(change.mapper)
    params = {known.columns[name].key: value for name, value in change.values.items()}
    for number, value in enumerate(change.identity):
        params[f"{KEY}{number}"] = value
    if change.versions is not None:
        one = change.only_version
        params[EXPECTED] = list(change.versions) if one is None else one
    if made:
        params[known.version.key] = change.made
    return params


def params_of(form: RowStatement, change: Change) -> dict[str, Any]:
    """Return the parameters of the statement for a change."""
    made = form.makes and not change.deletes and not form.shape.ignored_only
    params = _named(change, made=made)
    if made and change.made is None:
        following_of: Any = change.mapper.version_id_generator
        params[facts(change.mapper).version.key] = following_of(change.only_version)
    return params
