"""Checks of each class: its version moves as it should, its values compare, its rows have versions.

A column whose values do not equal themselves is written by every save, or conflicts. A type is
checked with a value and its copy. Objects of the application's own are checked in the data: a few
rows of tables with such columns are read twice, and each value has to equal itself. A pickled
object without ``__eq__`` does not.

Rows are counted only where versions may be missing or repeated: not for NULL in a column that is
NOT NULL. One statement reads many tables.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock._mapping.original_values import compared_names
from optilock._undocumented.connections import reads_json_itself
from optilock._versioned import Versioned
from optilock._watched.aggregates import roots_of
from optilock.check.findings import Finding, error, note, unreadable_finding, warning
from optilock.check.subjects import CheckedTable
from optilock.check.tables import keeps_microseconds
from optilock.dialects.catalogue import StoredColumn, StoredTable
from optilock.serialize import is_same_value


def check_mapping(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Find a missing version, and columns that move it or conflict without need."""
    name = mapper.class_.__name__
    if not facts(mapper).guarded:
        if facts(mapper).forgotten:
            yield warning(
                "no-version",
                name,
                "The class has no version: the last write wins, silently.",
                "Add the mixin optilock.Versioned, if its rows have more than one writer."
                " Otherwise say so: __version_token__ = None.",
            )
        elif roots := roots_of(mapper, by_links=False):
            yield note(
                "part-without-version",
                name,
                f"Only the version of the root ({', '.join(roots)}) guards its rows: a change is"
                " compared if the root was read before the part, and no merge settles it.",
                "Add the mixin optilock.Versioned, if its rows have more than one writer.",
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
    yield from _parts_without_root(mapper)


def _parts_without_root(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Find children that live and die with a row, and whose changes leave its version."""
    for one in mapper.relationships:
        if not one.cascade.delete_orphan or one.parent is not mapper:
            continue
        name = f"{one.parent.class_.__name__}.{one.key}"
        if name not in roots_of(one.mapper, by_links=True):
            yield note(
                "no-root",
                name,
                f"Rows of {one.mapper.class_.__name__} are deleted with their parent, and a change"
                " of one leaves the parent's version: its ETag stays, and a rule over all of them"
                " may break.",
                f'Write __version_root_of__ = ("{one.key}",) if the parts are one whole with the'
                " parent. Leave it if they are edited one by one.",
            )


def _moving_by_itself(mapper: Mapper[Any]) -> Iterator[Finding]:
    """Find compared columns that every save writes: any two saves conflict."""
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
    if isinstance(token, sa.Column) and isinstance(token.type, (sa.types.Date, sa.types.DateTime)):
        generator = mapper.version_id_generator
        if generator:
            yield warning(
                "clock",
                f"{mapper.class_.__name__}.{facts(mapper).names[token]}",
                "The version is a time that the program's own clock makes: two writes in one tick,"
                " or two clocks, can give the same version.",
                "Use Timestamp(), whose time is the server's and always moves on, or Counter().",
            )


#: Rows that are read of each table.
_ROWS = 20


def check_values(
    connection: sa.Connection, mapper: Mapper[Any], stored: Mapping[sa.Table, StoredTable]
) -> Iterator[Finding]:
    """Find columns of a class with a version whose values change by themselves."""
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
    for name in sorted(columns.keys() & compared):
        there = _stored(stored, columns[name])
        if there is not None:
            yield from _changed(f"{mapper.class_.__name__}.{name}", columns[name], there)


def _changed(about: str, column: sa.Column[Any], there: StoredColumn) -> Iterator[Finding]:
    """Find a compared column that the database changes or rounds."""
    if there.moves_by_itself and column.onupdate is None:
        yield warning(
            "rewritten",
            about,
            "The database changes the column in every UPDATE, and its value is compared: any two"
            " writers conflict.",
            "Name it in __version_ignore__, or compare other columns.",
        )
    if isinstance(column.type, sa.types.DateTime) and not keeps_microseconds(there):
        yield warning(
            "resolution",
            about,
            "The column keeps less than microseconds, and its value is compared: a time that was"
            " rounded is not the one that the program has.",
            "Change it to a type with six digits (DATETIME(6), TIMESTAMP(6)).",
        )


def _never_equal(
    connection: sa.Connection,
    mapper: Mapper[Any],
    columns: Mapping[str, sa.Column[Any]],
    compared: Any,
    stored: Mapping[sa.Table, StoredTable],
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
                else "assigning it writes the row and moves the version, also where nothing"
                " has changed."
            ),
            "Give the value's class an __eq__, or the type a comparator"
            " (PickleType(comparator=…), TypeDecorator.compare_values).",
        )


def _keeps_objects(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> bool:
    """Return whether values may be objects of the application; SQLAlchemy's own ones are equal."""
    if isinstance(kind, sa.types.ARRAY):
        return _keeps_objects(kind.item_type, dialect)
    if isinstance(kind, sa.types.JSON) and reads_json_itself(dialect):
        return True
    made_by = type(kind.dialect_impl(dialect)).__module__.partition(".")[0]
    return isinstance(kind, sa.types.PickleType) or made_by not in ("sqlalchemy", "optilock")


def _equals_its_copy(column: sa.Column[Any]) -> bool:
    """Return whether a value of a type that keeps objects equals its copy; others always do."""
    if not isinstance(column.type, (sa.types.PickleType, sa.types.JSON)):
        return True
    value = {"a": [1, "b"]}
    try:
        return bool(column.type.compare_values(value, copy.deepcopy(value)))
    except Exception:  # a comparator for other values than this one
        return True


def _unequal_in_data(connection: sa.Connection, columns: Mapping[str, sa.Column[Any]]) -> set[str]:
    """Read a few rows of each table twice; return the columns with unequal values."""
    unequal: set[str] = set()
    for table in {column.table for column in columns.values()}:
        of_table = {n: c for n, c in columns.items() if c.table is table and not c.primary_key}
        if of_table and isinstance(table, sa.Table) and table.primary_key.columns:
            unequal.update(_unequal_in_table(connection, table, of_table))
    return unequal


def _unequal_in_table(
    connection: sa.Connection, table: sa.Table, columns: Mapping[str, sa.Column[Any]]
) -> Iterator[str]:
    keys = list(table.primary_key)
    first, second = (_rows(connection, keys, list(columns.values())) for _ in range(2))
    for key in first.keys() & second.keys():
        for name, a, b in zip(columns, first[key], second[key], strict=True):
            if a is not None and b is not None and not is_same_value(columns, name, a, b):
                yield name


def _rows(
    connection: sa.Connection, keys: list[sa.Column[Any]], columns: list[sa.Column[Any]]
) -> dict[Any, tuple[Any, ...]]:
    query = sa.select(*keys, *columns).order_by(*keys).limit(_ROWS)
    try:
        rows = connection.execute(query).all()
        return {tuple(row[: len(keys)]): tuple(row[len(keys) :]) for row in rows}
    except Exception:  # unreadable for the database, or for a type of the application's
        connection.rollback()
        return {}


def _stored(stored: Mapping[sa.Table, StoredTable], column: sa.Column[Any]) -> StoredColumn | None:
    table: Any = column.table
    there = stored.get(table)
    return None if there is None else there.column(column.name)


# -- versions in the rows --------------------------------------------------------------------------

#: Counts that one statement takes (SQLite: 500 at most).
_AT_ONCE = 100


class _Question(NamedTuple):
    """A number of rows that should be 0, and the finding if it is not."""

    name: str
    number: sa.ScalarSelect[int]
    finding: Callable[[int], Finding]


def check_rows(connection: sa.Connection, seen: Iterable[CheckedTable]) -> Iterator[Finding]:
    """Count rows without a version, and random versions that occur twice."""
    asked = [question for one in seen for question in _questions(one)]
    for start in range(0, len(asked), _AT_ONCE):
        yield from _answered(connection, asked[start : start + _AT_ONCE])


def _questions(seen: CheckedTable) -> Iterator[_Question]:
    if seen.version is None:
        return  # the table's check reports it
    name, token, column = seen.version
    if column.nullable:
        yield _Question(name, _missing(token), lambda number: _null_versions(seen, name, number))
    if isinstance(token.type, sa.Uuid):
        yield _Question(name, _repeated(token), lambda number: _repeated_versions(name, number))


def _answered(connection: sa.Connection, asked: list[_Question]) -> Iterator[Finding]:
    if not asked:
        return
    counts: sa.CompoundSelect[Any] = sa.union_all(
        *(sa.select(sa.literal_column(str(n)), question.number) for n, question in enumerate(asked))
    )
    try:
        answers = connection.execute(counts).all()
    except DBAPIError as refusal:
        connection.rollback()
        if len(asked) == 1:
            yield unreadable_finding(asked[0].name, refusal)
            return
        for question in asked:
            yield from _answered(connection, [question])
        return
    for n, number in answers:
        if number:
            yield asked[n].finding(number)


def _missing(token: sa.Column[Any]) -> sa.ScalarSelect[int]:
    rows = sa.select(sa.func.count()).select_from(token.table).where(token.is_(None))
    return rows.scalar_subquery()


def _repeated(token: sa.Column[Any]) -> sa.ScalarSelect[int]:
    groups = sa.select(token).where(token.is_not(None)).group_by(token).having(sa.func.count() > 1)
    return sa.select(sa.func.count()).select_from(groups.subquery()).scalar_subquery()


def _null_versions(seen: CheckedTable, name: str, number: int) -> Finding:
    rows = "1 row has" if number == 1 else f"{number} rows have"
    return error(
        "null-versions",
        name,
        f"{rows} no version: writing one of them is refused.",
        f"{seen.subject.roll_out}: it fills them beside the writers.",
    )


def _repeated_versions(name: str, number: int) -> Finding:
    return warning(
        "repeated-versions",
        name,
        f"{number} random versions are carried by more than one row: something copies them.",
        "Look for INSERT … SELECT and for rows that are cloned with their version.",
    )
