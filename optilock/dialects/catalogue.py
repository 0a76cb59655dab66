"""The catalogue of a database: columns, keys and weaknesses of all tables of a schema.

::

    tables = database_of(dialect).catalogue(connection, "shop").tables({"pages", "items"})
    tables["pages"].column("version").type      # 'bigint(20)'

A name without a schema stands for the table that a statement would find. Tables that do not exist,
or are hidden from the connection's user, are not in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, bindparam, inspect, text


class Weakness(NamedTuple):
    """Something that makes the check of versions void (``severe``) or weaker.

    A small function finds each weakness: it takes a record of what was read and yields it. The
    functions of an engine are in its file ``weak_settings``, with a list of them at its end: to add
    one, write it and name it there.
    """

    code: str
    severe: bool
    message: str
    advice: str


@dataclass(frozen=True)
class StoredColumn:
    """A column as the database has it."""

    name: str
    #: In the database's own words, and in small letters: ``timestamp(6) without time zone``.
    type: str
    nullable: bool
    #: SQL of what an INSERT gives it that does not name it.
    default: str | None = None
    #: Whether it follows from other columns.
    generated: bool = False
    #: Whether the database numbers it.
    numbered: bool = False
    #: Whether the database changes it in every UPDATE that does not name it.
    moves_by_itself: bool = False
    #: The collation, or the type, that takes texts for the same that are not.
    lax: str | None = None
    #: Whether it is a column of a view that no UPDATE can set.
    fixed: bool = False

    @property
    def word(self) -> str:
        """The first word of the type, in capitals."""
        return re.split(r"[ (]", self.type, maxsplit=1)[0].upper()

    @property
    def size(self) -> int | None:
        """The number in brackets: characters of a text, digits of a second's fraction."""
        found = re.search(r"\((\d+)", self.type)
        return None if found is None else int(found.group(1))

    @property
    def is_filled(self) -> bool:
        """Whether an INSERT may omit it."""
        return self.nullable or self.default is not None or self.generated or self.numbered


@dataclass(frozen=True)
class StoredTable:
    """A table, or a view, as the database has it."""

    name: str
    #: By their names, in small letters where the database does not tell them apart (``cased``).
    columns: Mapping[str, StoredColumn]
    #: Sets of columns that name one row: the primary key, unique constraints and unique indexes.
    keys: tuple[frozenset[str], ...] = ()
    is_view: bool = False
    #: The statements that fail, or that count no rows, as it is a view: ``UPDATE``, ``DELETE``.
    refuses: tuple[str, ...] = ()
    cased: bool = True
    #: The database's own objection to it.
    weaknesses: tuple[Weakness, ...] = ()

    def column(self, name: str) -> StoredColumn | None:
        """Return the stored column with that name."""
        return self.columns.get(self.cased_as(name))

    def cased_as(self, name: str) -> str:
        return name if self.cased else name.lower()

    @cached_property
    def generated(self) -> tuple[str, ...]:
        """The names of the columns that follow from others."""
        return tuple(column.name for column in self.columns.values() if column.generated)


class Cascade(NamedTuple):
    """A foreign key by which the database changes rows without firing a trigger."""

    table: str
    column: str
    #: The table that it refers to.
    parent: str
    #: ``ON UPDATE CASCADE``
    does: str


@dataclass(frozen=True)
class Catalogue:
    """One schema's, over one connection. As it stands, by SQLAlchemy's inspector, one by one."""

    connection: Connection
    schema: str | None
    #: Whether names that only differ in case are names of two columns.
    cased: ClassVar[bool] = True
    #: Whether a column only keeps values of its own type.
    keeps_types: ClassVar[bool] = True
    #: Names that one statement asks for.
    at_once: int = field(default=500, kw_only=True)

    def silent_cascades(self) -> list[Cascade]:
        """Foreign keys that change rows behind the back of the row's triggers."""
        return []

    def tables(self, names: Iterable[str]) -> dict[str, StoredTable]:
        """Return the existing tables among ``names``."""
        wanted = sorted(set(names))
        found: dict[str, StoredTable] = {}
        for start in range(0, len(wanted), self.at_once):
            found |= self._read(wanted[start : start + self.at_once])
        return found

    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        seen = inspect(self.connection)
        there = (name for name in names if seen.has_table(name, schema=self.schema))
        return {name: self._inspected(seen, name) for name in there}

    def _inspected(self, seen: Any, name: str) -> StoredTable:
        where = {"schema": self.schema}
        is_view = name in seen.get_view_names(**where)
        columns = [self._column(one) for one in seen.get_columns(name, **where)]
        keys = [] if is_view else list(_unique(seen, name, where))
        return self.table(name, columns, keys, is_view=is_view)

    def _column(self, found: Mapping[str, Any]) -> StoredColumn:
        try:
            kind = found["type"].compile(self.connection.dialect).lower()
        except Exception:  # a type that SQLAlchemy does not know
            kind = ""
        return StoredColumn(
            found["name"],
            kind,
            bool(found["nullable"]),
            found.get("default"),
            bool(found.get("computed")),
            bool(found.get("identity")) or found.get("autoincrement") is True,
        )

    # -- for those who ask in SQL --------------------------------------------------------------

    def table(
        self, name: str, columns: Iterable[StoredColumn], keys: Iterable[Iterable[str]], **of: Any
    ) -> StoredTable:
        """Put together what was read of one table."""
        table = StoredTable(name, {}, (), cased=self.cased, **of)
        return StoredTable(
            name,
            {table.cased_as(column.name): column for column in columns},
            tuple(frozenset(map(table.cased_as, key)) for key in map(list, keys) if key),
            cased=self.cased,
            **of,
        )

    def ask(self, sql: str, names: Collection[str], **values: Any) -> dict[str, list[Any]]:
        """Rows by the table that the first column names, without that column."""
        query = text(sql)
        if ":names" in sql:
            query = query.bindparams(bindparam("names", expanding=True))
            values["names"] = list(names)
        return by_first(self.connection.execute(query, values))


def by_first(rows: Iterable[Any]) -> dict[Any, list[Any]]:
    """Rows by their first column, without it."""
    grouped: dict[Any, list[Any]] = {}
    for first, *rest in rows:
        grouped.setdefault(first, []).append(tuple(rest))
    return grouped


def keys_of(rows: Iterable[tuple[Any, Any]]) -> Iterator[list[str]]:
    """Rows (index, column) as lists of columns; without an index of an expression."""
    for _, of_index in groupby(sorted(rows, key=lambda row: str(row[0])), key=itemgetter(0)):
        columns = [column for _, column in of_index]
        if None not in columns:
            yield columns


def _unique(seen: Any, name: str, where: Mapping[str, Any]) -> Iterator[list[str]]:
    yield seen.get_pk_constraint(name, **where)["constrained_columns"]
    for one in seen.get_unique_constraints(name, **where):
        yield one["column_names"]
    for index in seen.get_indexes(name, **where):
        if index["unique"] and None not in index["column_names"] and not _is_partial(index):
            yield index["column_names"]


def _is_partial(index: Mapping[str, Any]) -> bool:
    """One that holds for some rows only."""
    return any(name.endswith("_where") for name in index.get("dialect_options", ()))
