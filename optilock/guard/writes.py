"""A guarded write as a value: which table, which row, which new values, under which conditions.

The unit of work of SQLAlchemy hands over a statement and a dictionary of parameters for each row.
What all rows with the same statement and the same parameter names have in common is read once and
kept as a :class:`Shape`; a row is then a :class:`Write`: a shape and its parameters.

The version is one :class:`Condition` of the write. Others can stand beside it: every form in which
writes are sent takes the whole list, and a row that fails any of them has missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    Column,
    Delete,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    Update,
    bindparam,
)
from sqlalchemy.dialects.postgresql import ExcludeConstraint
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList

from optilock.mapping.compared import compares
from optilock.versioned import ignored_columns

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

__all__ = ["Condition", "Shape", "Write", "compared_columns", "shape_of"]

Params = dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """The row must still hold, in ``column``, the value that the write carries in ``parameter``."""

    column: Column[Any]
    parameter: str


class Write(NamedTuple):
    """One row to write."""

    shape: Shape
    params: Params

    def key(self) -> tuple[Any, ...]:
        return self.shape.key_of(self.params)


@dataclass(frozen=True, eq=False)
class Shape:
    """What the writes of one statement and one set of parameter names have in common."""

    statement: Update | Delete
    table: Table
    mapper: Mapper[Any]
    #: Primary key columns of the table with the names of their parameters.
    keys: tuple[Condition, ...]
    #: What must still be true of the row, the version first.
    conditions: tuple[Condition, ...]
    #: Columns that get a new value, by the name of the parameter that carries it.
    sets: Mapping[str, Column[Any]]
    #: Columns with a Python-side ``onupdate``.
    prefetch: tuple[Column[Any], ...]
    #: Columns that the database will compute.
    postfetch: tuple[Column[Any], ...]
    #: SQL expressions among the new values, but for those that only move the version.
    expressions: Mapping[Column[Any], Any]
    #: Must be sent by itself: order matters, or the answer carries values.
    alone: bool
    #: Values of the row are compared besides its version.
    compares: bool
    #: Only ignored columns change: the version is neither checked nor moved.
    ignored_only: bool
    #: Nothing but the version moves here: whether it must depends on the row's other tables.
    perhaps_ignored: bool
    #: Any of the last three: asked once for a row that is none of them.
    special: bool

    #: Columns that are set to an expression for the version's sake alone.
    touches: tuple[Column[Any], ...] = ()
    #: The parameter that carries the expected version.
    token_parameter: str = ""
    #: The database's statements for this shape together with others, built when first needed.
    forms: dict[Any, Any] = field(default_factory=dict)

    def all_sets(self) -> dict[str, Column[Any]]:
        """Columns that the write carries a value for, ``onupdate`` values included."""
        return {**self.sets, **{column.key: column for column in self.prefetch}}

    @property
    def deletes(self) -> bool:
        return isinstance(self.statement, Delete)

    @property
    def token(self) -> Condition:
        return self.conditions[0]

    def bind(self, condition: Condition) -> BindParameter[Any]:
        return bindparam(condition.parameter, type_=condition.column.type)

    def key_of(self, params: Params) -> tuple[Any, ...]:
        return tuple([params[key.parameter] for key in self.keys])

    def identity_of(self, params: Params) -> tuple[Any, ...]:
        """The key in the order of the mapper's primary key."""
        by_attribute = {
            self.mapper.get_property_by_column(key.column).key: params[key.parameter]
            for key in self.keys
        }
        return tuple(
            by_attribute[self.mapper.get_property_by_column(column).key]
            for column in self.mapper.primary_key
        )


def shape_of(
    statement: Update | Delete, names: frozenset[str], mapper: Mapper[Any], dialect: Dialect
) -> Shape | None:
    """Read the shape of a statement of the unit of work; ``None`` if it is not a guarded one."""
    table = statement.table
    token = mapper.version_id_col
    if not isinstance(token, Column) or not isinstance(table, Table):
        return None
    compared = compared_columns(statement)
    if compared is None or token not in compared:
        return None
    keys = tuple(Condition(col, name) for col, name in compared.items() if col is not token)
    where = {condition.parameter for condition in keys} | {compared[token]}
    sets = _sets(statement, table, names, where)
    given = dict(getattr(statement, "_values", None) or {})
    if (
        isinstance(statement, Update)
        and token.key not in sets
        and token not in given
        and token.onupdate is not None
        and callable(mapper.version_id_generator)
    ):
        # post_update of a new row names no version: its object would not learn of a new one.
        statement = statement.values({token: token})
    expressions = {c: e for c, e in given.items() if c is not token and c is not e}
    changed = {*sets.values(), *expressions} - {token}
    alone = not isinstance(statement, Delete) and (
        bool(given)
        or bool(statement._returning or statement._return_defaults)
        or token.key not in sets
        or not changed.isdisjoint(_order_matters(table))
    )
    prefetch, postfetch = ((), ()) if alone else _computed(statement, names, dialect)
    ignored = ignored_columns(mapper)
    ignored_only = bool(changed) and changed <= ignored
    perhaps_ignored = not changed and bool(ignored) and (token.key in sets or bool(given))
    return Shape(
        statement=statement,
        table=table,
        mapper=mapper,
        keys=keys,
        conditions=(Condition(token, compared[token]),),
        token_parameter=compared[token],
        sets=sets,
        prefetch=prefetch,
        postfetch=postfetch,
        expressions=expressions,
        alone=alone,
        compares=compares(mapper),
        ignored_only=ignored_only,
        perhaps_ignored=perhaps_ignored,
        special=ignored_only or perhaps_ignored or compares(mapper),
        touches=tuple(given.keys() - expressions.keys()),
    )


def compared_columns(statement: Update | Delete) -> dict[Column[Any], str] | None:
    """Column -> parameter of a WHERE made of ``column = :parameter`` only."""
    where = statement.whereclause
    clauses = where.clauses if isinstance(where, BooleanClauseList) else [where]
    found: dict[Column[Any], str] = {}
    for clause in clauses:
        if not (
            isinstance(clause, BinaryExpression)
            and clause.operator is operators.eq
            and isinstance(clause.left, Column)
            and isinstance(clause.right, BindParameter)
        ):
            return None
        found[clause.left] = clause.right.key
    return found


def _sets(
    statement: Update | Delete, table: Table, names: frozenset[str], where: set[str]
) -> dict[str, Column[Any]]:
    if isinstance(statement, Delete):
        return {}
    return {name: table.c[name] for name in sorted(names - where)}


def _computed(
    statement: Update | Delete, names: frozenset[str], dialect: Dialect
) -> tuple[tuple[Column[Any], ...], tuple[Column[Any], ...]]:
    """Columns whose value comes from Python at the moment of writing, and from the database."""
    if isinstance(statement, Delete):
        return (), ()
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(names))
    return tuple(compiled.prefetch), tuple(compiled.postfetch)


def _order_matters(table: Table) -> set[Column[Any]]:
    """Columns whose uniqueness is checked row by row: ``u = u - 1`` must run in the given order."""
    found: set[Column[Any]] = {column for column in table.columns if column.unique}
    for constraint in table.constraints:
        if isinstance(constraint, (PrimaryKeyConstraint, UniqueConstraint, ExcludeConstraint)):
            found.update(constraint.columns)
    for index in table.indexes:
        if index.unique:
            found.update(column for column in index.columns if isinstance(column, Column))
    return found
