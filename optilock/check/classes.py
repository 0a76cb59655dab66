"""What is asked of each class: has it a version, which moves when it should? Do its values compare?

Columns whose values cannot be told from what they were are written by every save, or conflict. A
type is asked with a value and its copy. Whether the application's own values know each other is
seen only in the data: of tables with columns that keep objects a few rows are read twice, and each
value has to equal itself. A pickled object without ``__eq__`` does not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table, select, types
from sqlalchemy.orm import Mapper

from optilock.check.findings import Finding, error, note, warning
from optilock.check.versions import keeps_microseconds
from optilock.dialects.catalogue import StoredColumn, StoredTable
from optilock.mapped import facts, same
from optilock.mapping.compared import compared_names
from optilock.undocumented.connections import reads_json_itself
from optilock.versioned import Versioned


def check_mapping(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Is there a version, and does anything make it move, or conflict, without need?"""
    name = mapper.class_.__name__
    if not facts(mapper).guarded:
        if facts(mapper).forgotten:
            yield warning(
                "no-version",
                name,
                "The class has no version: the last writer wins, and nobody is told.",
                "Add the mixin optilock.Versioned, if its rows have more than one writer."
                " Otherwise say so: __version_token__ = None.",
            )
        return
    if not issubclass(mapper.class_, Versioned) and mapper.inherits is None:
        yield note(
            "not-versioned",
            name,
            "The class has SQLAlchemy's own version_id_col. Watched sessions guard it as it is.",
            "The mixin optilock.Versioned adds ignored columns and a resolver of the class's own.",
        )
    yield from _moving_by_itself(mapper)
    yield from _too_coarse(mapper)


def _moving_by_itself(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Compared columns that every save writes: then any two saves conflict."""
    compared = compared_names(mapper, changed=(), deleting=True)
    for attribute, column in facts(mapper).columns.items():
        written = column.onupdate is not None or column.server_onupdate is not None
        if written and attribute in compared and column not in facts(mapper).ignored:
            yield warning(
                "rewritten",
                f"{mapper.class_.__name__}.{attribute}",
                "Every save writes the column, and its value is compared: writers of different"
                " columns always conflict.",
                "Name it in __version_ignore__, or compare other columns.",
            )


def _too_coarse(mapper: Mapper[Any]) -> Iterator[Finding]:
    token = facts(mapper).version
    if isinstance(token, Column) and isinstance(token.type, (types.Date, types.DateTime)):
        generator = mapper.version_id_generator
        if generator:
            yield warning(
                "clock",
                f"{mapper.class_.__name__}.{facts(mapper).names[token]}",
                "The version is a time that the program's own clock makes: two writes in one tick,"
                " or two clocks, can give the same version.",
                "Use Timestamp(), whose time is the server's and always moves on, or Counter().",
            )


#: Rows that are read.
_ROWS = 20


def check_values(
    connection: Connection, mapper: Mapper[Any], stored: Mapping[Table, StoredTable]
) -> Iterator[Finding]:
    """Look at the columns of a class with a version."""
    if not facts(mapper).guarded:
        return
    compared = compared_names(mapper, changed=(), deleting=True)
    inherited = () if mapper.inherits is None else facts(mapper.inherits).columns
    columns = {
        name: column
        for name, column in facts(mapper).columns.items()
        if name not in inherited and column not in facts(mapper).ignored
    }
    yield from _never_equal(connection, mapper, columns, compared, stored)
    for name in compared:
        column = columns.get(name)
        there = None if column is None else _stored(stored, column)
        if column is None or there is None:
            continue
        about = f"{mapper.class_.__name__}.{name}"
        if there.moves_by_itself and column.onupdate is None:
            yield warning(
                "rewritten",
                about,
                "The database changes the column in every UPDATE, and its value is compared: any"
                " two writers conflict.",
                "Name it in __version_ignore__, or compare other columns.",
            )
        if isinstance(column.type, types.DateTime) and not keeps_microseconds(there):
            yield warning(
                "resolution",
                about,
                "The column keeps less than microseconds, and its value is compared: a time that"
                " was rounded is not the one that the program has.",
                "Change it to a type with six digits (DATETIME(6), TIMESTAMP(6)).",
            )


def _never_equal(
    connection: Connection,
    mapper: Mapper[Any],
    columns: Mapping[str, Column[Any]],
    compared: Any,
    stored: Mapping[Table, StoredTable],
) -> Iterator[Finding]:
    doubtful = {n: c for n, c in columns.items() if _stored(stored, c) is not None}
    unequal = {name for name, column in doubtful.items() if not _equals_its_copy(column)}
    kept = {n: c for n, c in doubtful.items() if _keeps_objects(c.type, connection.dialect)}
    unequal |= _unequal_in_data(connection, kept)
    for name in sorted(unequal):
        conflicts = name in compared
        yield (error if conflicts else warning)(
            "never-equal",
            f"{mapper.class_.__name__}.{name}",
            f"A value of {columns[name].type!r} does not equal itself when it is read again: "
            + (
                "it is compared, so every write of such a row is a conflict."
                if conflicts
                else "whoever assigns it writes the row and moves the version, also where nothing"
                " has changed."
            ),
            "Give the value's class an __eq__, or the type a comparator"
            " (PickleType(comparator=…), TypeDecorator.compare_values).",
        )


def _keeps_objects(kind: types.TypeEngine[Any], dialect: Dialect) -> bool:
    """Can its values be objects of the application's? What SQLAlchemy makes of them is equal."""
    if isinstance(kind, types.ARRAY):
        return _keeps_objects(kind.item_type, dialect)
    if isinstance(kind, types.JSON) and reads_json_itself(dialect):
        return True
    made_by = type(kind.dialect_impl(dialect)).__module__.partition(".")[0]
    return isinstance(kind, types.PickleType) or made_by not in ("sqlalchemy", "optilock")


def _equals_its_copy(column: Column[Any]) -> bool:
    """Asked of types that keep objects; the others compare what Python compares."""
    if not isinstance(column.type, (types.PickleType, types.JSON)):
        return True
    value = {"a": [1, "b"]}
    try:
        return bool(column.type.compare_values(value, copy.deepcopy(value)))
    except Exception:  # a comparator for other values than this one
        return True


def _unequal_in_data(connection: Connection, columns: Mapping[str, Column[Any]]) -> set[str]:
    """Of each table a few rows, twice."""
    unequal: set[str] = set()
    for table in {column.table for column in columns.values()}:
        of_table = {n: c for n, c in columns.items() if c.table is table and not c.primary_key}
        keys = list(table.primary_key)
        if not of_table or not keys or not isinstance(table, Table):
            continue
        first, second = (_rows(connection, keys, list(of_table.values())) for _ in range(2))
        for key in first.keys() & second.keys():
            for name, a, b in zip(of_table, first[key], second[key], strict=True):
                if a is not None and b is not None and not _same(of_table[name], a, b):
                    unequal.add(name)
    return unequal


def _rows(
    connection: Connection, keys: list[Column[Any]], columns: list[Column[Any]]
) -> dict[Any, tuple[Any, ...]]:
    query = select(*keys, *columns).order_by(*keys).limit(_ROWS)
    try:
        rows = connection.execute(query).all()
        return {tuple(row[: len(keys)]): tuple(row[len(keys) :]) for row in rows}
    except Exception:  # unreadable for the database, or for a type of the application's
        connection.rollback()
        return {}


def _same(column: Column[Any], a: Any, b: Any) -> bool:
    try:
        return same(column, a, b)
    except Exception:  # what cannot be compared is no finding of ours
        return True


def _stored(stored: Mapping[Table, StoredTable], column: Column[Any]) -> StoredColumn | None:
    table: Any = column.table
    there = stored.get(table)
    return None if there is None else there.column(column.name)
