"""The rows that a statement names.

A row is named by equality with its whole primary key under AND, and only if ``reset`` stores it:
the key of a new row differs from run to run. Everything else is the whole table. SQL as text, and a
function of the database that may do anything, touch everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    ColumnClause,
    ColumnElement,
    TextClause,
)
from sqlalchemy.sql.functions import FunctionElement, GenericFunction
from sqlalchemy.sql.selectable import Alias, SelectBase

from optilock.dialects import database_of
from optilock.tokens.sql_functions import DatabaseFunction

#: A table's name and a key of it; without a key the whole table, without a table everything.
Place: TypeAlias = tuple[str | None, tuple[object, ...] | None]
EVERYTHING: Place = (None, None)
#: The keys of rows that ``reset`` stores, by table.
Known: TypeAlias = Mapping[str, frozenset[tuple[object, ...]]]


class Way(Enum):
    """How a step touches a place."""

    READS = "reads"
    LOCKS = "locks"
    SHOWS = "shows"


Touch: TypeAlias = tuple[Way, Place]

_LOCKING = re.compile(
    r"\b(FOR\s+(UPDATE|SHARE|NO\s+KEY\s+UPDATE|KEY\s+SHARE)|LOCK\s+IN\s+SHARE\s+MODE)\b",
    re.IGNORECASE,
)
#: Functions without a class in SQLAlchemy that only compute.
_COMPUTES = re.compile(
    "abs|avg|bool_and|bool_or|ceil|date_trunc|extract|floor|greatest|ifnull|json_array|json_object"
    "|julianday|last_insert_id|least|left|length|lower|ltrim|nullif|replace|right|round|rtrim"
    "|strftime|substr|substring|timestampadd|to_char|total|trim|upper|utc_timestamp",
    re.IGNORECASE,
)
_ANYTHING: tuple[Touch, ...] = ((Way.READS, EVERYTHING), (Way.LOCKS, EVERYTHING))


def touches_of(
    context: Any, text: str, known: Known, tables: dict[str, sa.Table]
) -> Iterable[Touch]:
    """Return what one statement touches on a database that locks exactly its rows.

    Its tables are added to ``tables``.
    """
    compiled = getattr(context, "compiled", None)
    statement = getattr(compiled, "statement", None)
    if statement is None:
        return _ANYTHING
    built = getattr(getattr(compiled, "compile_state", None), "statement", None)
    if isinstance(built, sa.ClauseElement):
        statement = built  # with the joins that the ORM has added
    if _is_opaque(statement):
        return _ANYTHING
    read = _Statement(statement, text, context, known)
    tables.update(read.tables)
    return read.touches()


def _is_opaque(statement: sa.ClauseElement) -> bool:
    """Return whether a part of the statement is text, or a function that may do anything."""
    for one in visitors.iterate(statement):
        if isinstance(one, TextClause):
            return True
        if isinstance(one, ColumnClause) and one.is_literal and "(" in one.name:
            return True
        if isinstance(one, FunctionElement) and not _computes(one):
            return True
    return False


def _computes(function: FunctionElement[Any]) -> bool:
    if isinstance(function, (GenericFunction, DatabaseFunction)):
        return True
    return _COMPUTES.fullmatch(str(getattr(function, "name", ""))) is not None


class _Statement:
    """A statement of SQLAlchemy's own, with the values of its parameters."""

    def __init__(self, statement: Any, text: str, context: Any, known: Known) -> None:
        self._statement, self._text, self._known = statement, text, known
        self._database = database_of(context.dialect)
        self._names = context.compiled.bind_names
        self._rows: Sequence[Mapping[str, Any]] = context.compiled_parameters
        parts = [*visitors.iterate(statement)]
        nested = any(isinstance(one, SelectBase) for one in parts[1:])
        self._has_other_rows = nested or any(isinstance(one, Alias) for one in parts)
        self.tables = {table.fullname: table for table in _tables(parts)}

    def touches(self) -> Iterator[Touch]:
        """Yield the tables and rows, in the ways that the statement touches them."""
        statement, target = self._statement, None
        if statement.is_dml:
            target = statement.table
            yield from self._written(target)
        elif not statement.is_select:
            yield from _ANYTHING
        way = Way.LOCKS if target is None and _LOCKING.search(self._text) else Way.READS
        for table in self.tables.values():
            if target is None or table.fullname != target.fullname or not statement.is_insert:
                for key in self._keys(table):
                    yield way, (table.fullname, key)

    def _written(self, table: sa.Table) -> Iterator[Touch]:
        statement = self._statement
        moves = statement.is_update and self._sets(_unique_columns(table))
        whole = statement.is_insert or moves
        for key in (None,) if whole else self._keys(table):
            yield Way.LOCKS, (table.fullname, key)
        if statement.is_delete or moves:
            for child in _children(table):
                yield Way.LOCKS, (child.fullname, None)
        for foreign in table.foreign_keys:
            if statement.is_insert or (statement.is_update and self._sets({foreign.parent.name})):
                yield Way.LOCKS, (_parent(foreign), None)

    def _sets(self, names: set[str]) -> bool:
        """Return whether an UPDATE sets one of the columns, by its text."""
        part = re.split(r"\bWHERE\b", re.split(r"\bSET\b", self._text, maxsplit=1)[-1])[0]
        return any(re.search(rf"(?<!\w){re.escape(name)}[\"`]?\s*=", part) for name in names)

    def _keys(self, table: sa.Table) -> Iterable[tuple[object, ...] | None]:
        """Return the keys of the rows that the criteria name; ``None`` is the whole table."""
        columns, known = [*table.primary_key], self._known.get(table.fullname, frozenset())
        exact = all(self._database.values.compares_exactly(column.type) for column in columns)
        if self._has_other_rows or not columns or not exact:
            return (None,)
        equal = dict(_equalities(self._statement.whereclause))
        named = [equal.get((table.fullname, column.name)) for column in columns]
        if any(bound is None for bound in named):
            return (None,)
        found: set[tuple[object, ...]] = set()
        for row in self._rows:
            found |= {*product(*(self._values(bound, row) for bound in named))}
        return found if found <= known else (None,)

    def _values(self, bound: Any, row: Mapping[str, Any]) -> Iterable[Any]:
        name = self._names.get(bound, bound.key)
        value = row.get(name, bound.value)
        return value if isinstance(value, (list, tuple, set)) else (value,)


def _equalities(
    criteria: ColumnElement[Any] | None,
) -> Iterator[tuple[tuple[str, str], BindParameter[Any]]]:
    """Yield the columns that must have one of the values of a parameter."""
    if isinstance(criteria, BooleanClauseList) and criteria.operator is operators.and_:
        for part in criteria.clauses:
            yield from _equalities(part)
    if not isinstance(criteria, BinaryExpression):
        return
    column, value = criteria.left, criteria.right
    if criteria.operator not in (operators.eq, operators.in_op):
        return
    if isinstance(column, sa.Column) and isinstance(value, BindParameter):
        yield (str(getattr(column.table, "fullname", "")), column.name), value


def _tables(parts: Iterable[Any]) -> Iterator[sa.Table]:
    for one in parts:
        found = one if isinstance(one, sa.FromClause) else getattr(one, "table", None)
        while found is not None and not isinstance(found, sa.Table):
            found = getattr(found, "element", None)
        if isinstance(found, sa.Table):
            yield found.metadata.tables.get(found.fullname, found)


def _unique_columns(table: sa.Table) -> set[str]:
    names = {column.name for column in table.primary_key}
    names |= {column.name for column in table.columns if column.unique}
    for rule in table.constraints:
        if isinstance(rule, sa.UniqueConstraint):
            names |= {column.name for column in rule.columns}
    for index in table.indexes:
        if index.unique:
            names |= {column.name for column in index.columns}
    return names


def _parent(foreign: sa.ForeignKey) -> str:
    return foreign.target_fullname.rpartition(".")[0]


def _children(table: sa.Table) -> list[sa.Table]:
    """Return the tables that refer to a table, and those that refer to them."""
    found: list[sa.Table] = []
    due = [table]
    while due:
        name = due.pop().fullname
        for other in table.metadata.tables.values():
            if other not in found and any(_parent(one) == name for one in other.foreign_keys):
                found.append(other)
                due.append(other)
    return found
