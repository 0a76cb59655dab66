"""The one statement that writes a row by its key: what stands in it, and who tells the new version.

Made once for each class, database, and set of columns, and kept. The version that a row gets is
made in Python wherever it can be: from the one version that is expected, or at random. Otherwise
SQL makes it, and RETURNING tells it; or ``LAST_INSERT_ID()`` in the answer of MariaDB, which has no
RETURNING for an UPDATE; or a SELECT afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, ColumnElement, Connection, Integer, Table, and_, bindparam
from sqlalchemy.orm import Mapper

from optilock.conditions.condition import Condition, Given, Match, parameter
from optilock.conditions.write import Shape
from optilock.dialects import database_of
from optilock.errors import Entry
from optilock.mapped import Identity, facts
from optilock.watched.statements.version import following
from optilock.watched.writes.shapes import shape_of

__all__ = ["EXPECTED", "KEY", "Change", "Form", "form_of", "is_made_anew", "params_of"]

KEY, EXPECTED = "optilock_key_", "optilock_expected"


@dataclass(frozen=True)
class Change:
    """What is to be done to one row."""

    mapper: Mapper[Any]
    identity: Identity
    #: Attribute -> new value.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Attribute -> SQL of its new value: always the same for an attribute.
    computed: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    #: The versions in one of which the row must be; ``None``: whatever it is.
    versions: tuple[Any, ...] | None = None
    deletes: bool = False
    #: The version is to stay: only ignored columns get a value.
    still: bool = False
    #: The version that it gets, where it is made from the values of the row, or from the request.
    made: Any = None
    #: Was a version made by this very change, when it was sent before?
    is_ours: Callable[[Any], bool] | None = None
    #: May the database give the key back as another value? Then it is asked for that.
    respelled: bool = False


@dataclass(frozen=True)
class _AnyOf(Condition):
    """The row must hold one of the values that the write carries in ``parameter``."""

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
class Form:
    """The statement of a class, a database, and a set of columns; and who tells the version."""

    shape: Shape
    #: Python makes it, from the one that is expected.
    makes: bool
    #: RETURNING.
    returns: bool = False
    #: ``lastrowid``.
    tells: bool = False
    #: RETURNING has the key, too.
    names: bool = False

    @property
    def asks(self) -> bool:
        """A SELECT afterwards."""
        return not (self.makes or self.returns or self.tells)


_forms: WeakKeyDictionary[Mapper[Any], dict[Any, Form]] = WeakKeyDictionary()


def form_of(connection: Connection, change: Change) -> Form:
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
        found = forms[place] = _made(connection, change)
    return found


def _made(connection: Connection, change: Change) -> Form:
    mapper, known, dialect = change.mapper, facts(change.mapper), connection.dialect
    version, columns = known.version, known.columns
    database = database_of(dialect)
    table: Table = known.table
    kind, one = known.kind, change.versions is not None and len(change.versions) == 1
    by_trigger = kind is not None and kind.has_trigger and database.returns_before_triggers
    python = callable(mapper.version_id_generator)
    stays = change.still and not (kind is not None and kind.every_write)
    sets: dict[Any, Any] = {columns[name]: sql for name, sql in change.computed.items()}
    makes = change.deletes or change.made is not None or (one and (python or stays))
    makes = makes or (python and not stays and is_made_anew(mapper))
    returns = not makes and dialect.update_returning and not by_trigger
    tells = False
    if stays:
        sets[version] = version
    elif not change.deletes and not makes:
        if python or not change.values:
            sets |= following(mapper) if python else known.touch
        told = database.telling(sets[version]) if _counts(sets.get(version), version) else None
        if not returns and told is not None and python:
            sets[version], tells = told, True
    names = frozenset(_named(change, made=makes and not change.deletes and not stays))
    keys = [
        _in(table, key) == bindparam(f"{KEY}{i}", type_=key.type)
        for i, key in enumerate(mapper.primary_key)
    ]
    statement: Any = table.delete() if change.deletes else table.update()
    expected = version == bindparam(EXPECTED, type_=version.type)
    shape = shape_of(statement.where(and_(*keys, expected)), names, mapper, dialect)
    assert shape is not None
    conditions = _conditions(change, version)
    more = _of_class(mapper)
    statement = statement.where(
        *keys,
        *(one.clause(parameter) for one in conditions),
        *([] if more is None else [more]),
    )
    if sets:
        statement = statement.values(sets)
    returning = dialect.delete_returning if change.deletes else dialect.update_returning
    names_key = change.respelled and returning and (returns or not by_trigger)
    if returns or names_key:
        asked = [version] if returns else []
        keys_asked = [_in(table, key) for key in mapper.primary_key] if names_key else []
        statement = statement.returning(*asked, *keys_asked)
    shape = replace(
        shape,
        statement=statement,
        group=statement,
        conditions=conditions,
        prefetch=(),
        postfetch=(),
        ignored_only=stays,
        forms={},
    )
    return Form(shape, makes, returns, tells, names_key)


def is_made_anew(mapper: Mapper[Any]) -> bool:
    """Is the next version made without the one before (``Unique``)?"""
    kind = facts(mapper).kind
    if kind is not None:
        return kind.is_made_anew
    made: Any = mapper.version_id_generator
    first = made(None)
    return bool(first != made(None))


def _counts(value: Any, version: Column[Any]) -> bool:
    return value is not None and isinstance(version.type, Integer)


def _conditions(change: Change, version: Column[Any]) -> tuple[Condition, ...]:
    match change.versions:
        case None | ():
            return ()
        case (_,):
            return (Match(version, EXPECTED),)
        case _:
            return (_AnyOf(version, EXPECTED),)


def _of_class(mapper: Mapper[Any]) -> ColumnElement[bool] | None:
    """What is true of rows of the class alone, where several classes have one table."""
    if not mapper.single:
        return None
    column: Any = mapper.polymorphic_on
    return column.in_([one.polymorphic_identity for one in mapper.self_and_descendants])  # type: ignore[no-any-return]


def _in(table: Table, key: Any) -> Any:
    """The key's column in the table that has the version."""
    return key if key.table is table else next(iter(table.primary_key.columns))


def _named(change: Change, *, made: bool) -> dict[str, Any]:
    known = facts(change.mapper)
    params = {known.columns[name].key: value for name, value in change.values.items()}
    params.update({f"{KEY}{i}": value for i, value in enumerate(change.identity)})
    if change.versions is not None:
        one = len(change.versions) == 1
        params[EXPECTED] = change.versions[0] if one else list(change.versions)
    if made:
        params[known.version.key] = change.made
    return params


def params_of(form: Form, change: Change) -> dict[str, Any]:
    made = form.makes and not change.deletes and not form.shape.ignored_only
    params = _named(change, made=made)
    if made and change.made is None:
        following_of: Any = change.mapper.version_id_generator
        one = change.versions is not None and len(change.versions) == 1
        version = facts(change.mapper).version
        params[version.key] = following_of(params[EXPECTED] if one else None)
    return params
