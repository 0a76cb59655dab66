"""The rows of a bulk call: checked as a whole, and as guarded writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ClauseElement, Dialect, Integer, inspect
from sqlalchemy.orm import Mapper

from optilock.conditions.write import Shape, Write
from optilock.errors import ConfigurationError
from optilock.http.errors import NotFound
from optilock.http.identities import identity_given
from optilock.mapped import GIVE_ONE, Identity, facts
from optilock.statements.by_key import refuse_compared
from optilock.statements.version_types import VersionType
from optilock.writes.shapes import shape_by_key


@dataclass
class Rows:
    """Rows of one class, by place: key, expected version, new values."""

    mapper: Mapper[Any]
    deletes: bool
    rows: list[Mapping[str, Any]]
    identities: list[tuple[Any, ...]]
    expected: list[Any]
    #: Attribute -> new value.
    values: list[dict[str, Any]]
    #: The versions that the rows are to get; ``None`` where the database makes them.
    following: list[Any]

    def writes(self, dialect: Dialect) -> list[Write]:
        """The rows as the guard sends them."""
        columns, version = facts(self.mapper).columns, facts(self.mapper).version
        shapes: dict[tuple[str, ...], Shape] = {}
        writes = []
        for place, identity in enumerate(self.identities):
            values = self.values[place]
            names = tuple(values)
            if names not in shapes:
                shapes[names] = self._shape(names, dialect)
            shape = shapes[names]
            params = {columns[name].key: value for name, value in values.items()}
            if not self.deletes and self.following[place] is not None:
                params[version.key] = self.following[place]
            params.update(shape.found_by(identity, self.expected[place]))
            writes.append(Write(shape, params))
        return writes

    def _shape(self, names: Iterable[str], dialect: Dialect) -> Shape:
        known = facts(self.mapper)
        sets = None if self.deletes else [known.columns[name] for name in names]
        if sets is not None and callable(self.mapper.version_id_generator):
            sets.append(known.version)
        return shape_by_key(self.mapper, known.version.table, dialect, sets)

    def alone(self, write: Write) -> bool:
        """Must the row be sent by itself: order matters, or the database makes the version?"""
        return write.shape.alone or not (
            self.deletes or facts(self.mapper).version.key in write.shape.sets
        )


def rows_to_update(model: type[Any], rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Checked rows that set something."""
    found = _rows(model, rows, "bulk_update", deletes=False)
    for place, values in enumerate(found.values):
        if not values:
            raise ConfigurationError(
                f"Row {place} of bulk_update({model.__name__}) sets nothing: leave it out, or name"
                " the values that it gets."
            )
    return found


def rows_to_delete(model: type[Any], rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Checked rows with a key and a version, and nothing else."""
    found = _rows(model, rows, "bulk_delete", deletes=True)
    for place, values in enumerate(found.values):
        if values:
            raise ConfigurationError(
                f"Row {place} of bulk_delete({model.__name__}) has {_list(values)} beside its key"
                " and version: a row to delete needs no values."
            )
    if len(found.mapper.tables) > 1:
        raise ConfigurationError(
            f"bulk_delete({model.__name__}): its rows are in several tables (joined inheritance),"
            " which the objects' own delete takes apart. Use session.delete()."
        )
    return found


def _rows(model: type[Any], rows: Iterable[Mapping[str, Any]], call: str, *, deletes: bool) -> Rows:
    mapper = _mapper(model, call)
    token = facts(mapper).token
    keys = facts(mapper).keys
    found = Rows(mapper, deletes, list(rows), [], [], [], [])
    versions = VersionType(mapper)
    whole = all(isinstance(column.type, Integer) for column in mapper.primary_key)
    seen: dict[tuple[Any, ...], int] = {}
    for place, row in enumerate(found.rows):
        where = f"Row {place} of {call}({model.__name__})"
        _require(where, row, (*keys, token))
        if not versions.takes(row[token]):
            raise versions.refused(where, row[token])
        identity = tuple(row[name] for name in keys)
        if not (whole and all(type(value) is int for value in identity)):
            identity = _identity(where, mapper, call, identity)
        if identity in seen:
            raise ConfigurationError(
                f"{where} has the same key as row {seen[identity]}: {identity!r}. Give each row"
                " once."
            )
        seen[identity] = place
        values = {name: value for name, value in row.items() if name not in (*keys, token)}
        _check_values(where, mapper, values)
        found.identities.append(identity)
        found.expected.append(row[token])
        found.values.append(values)
        following = mapper.version_id_generator
        found.following.append(following(row[token]) if callable(following) else None)
    return found


def _identity(where: str, mapper: Mapper[Any], call: str, given: Identity) -> Identity:
    """The key as whoever reads it from a URL reads it."""
    try:
        return identity_given(call, mapper, given)
    except NotFound as error:
        error.add_note(f"optilock: {where} has this key, so nothing of the call was sent.")
        raise


def _mapper(model: Any, call: str) -> Mapper[Any]:
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper):
        raise ConfigurationError(f"{call}() takes a mapped class, not {model!r}.")
    if not facts(mapper).token:
        raise ConfigurationError(
            f"{call}({model.__name__}): the class has no version, so nothing could be checked:"
            f" {GIVE_ONE}."
        )
    refuse_compared(mapper, f"{call}()")
    if facts(mapper).by_application:
        raise ConfigurationError(
            f"{call}({model.__name__}): your program makes the versions of the class (Manual), and"
            " a bulk row has no place for the next one. Change the objects instead."
        )
    if facts(mapper).table_if_any is None:
        raise ConfigurationError(f"{call}({model.__name__}): its version is in no table.")
    return mapper


def _require(where: str, row: Any, names: Iterable[str]) -> None:
    if not isinstance(row, Mapping):
        raise ConfigurationError(
            f"{where} is of type {type(row).__name__}: write a mapping of attribute names to"
            " values."
        )
    missing = [name for name in names if row.get(name) is None]
    if missing:
        raise ConfigurationError(
            f"{where} has no {_list(missing)}: a row says which one it is, and which version its"
            " author has seen."
        )


def _check_values(where: str, mapper: Mapper[Any], values: Mapping[str, Any]) -> None:
    version = facts(mapper).version
    columns = facts(mapper).columns
    for name, value in values.items():
        if name not in columns:
            raise ConfigurationError(
                f"{where} names {name!r}, which is not a column attribute. There are:"
                f" {', '.join(sorted(columns))}."
            )
        if columns[name].table is not version.table:
            raise ConfigurationError(
                f"{where} sets {name!r}, which is in another table than the version (joined"
                " inheritance): change the object instead."
            )
        if isinstance(value, ClauseElement) or hasattr(value, "__clause_element__"):
            raise ConfigurationError(
                f"{where} sets {name!r} to a SQL expression: rows in bulk carry values. Use"
                " update() with optilock.unchanged()."
            )


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
