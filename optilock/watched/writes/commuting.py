"""Increments: a write that adds to columns, in any version of its row.

::

    UPDATE pages SET likes = likes + :1, version = CASE WHEN version = :read THEN :made
        ELSE version + 1 END WHERE id = :id RETURNING version, likes

It is the write of the same row without the version's condition, and with the difference instead of
the value (``__version_commutes__``, :mod:`optilock.mapping.checks`). All other conditions of the
row stay in the WHERE.

The version moves by one. Its new value shows whether the row was as it had been read: only then it
is the one that Python has made. A database without RETURNING may return a number with its result
(``telling`` of a database); otherwise the version is read once more.

A row that is written together with others is written as usual, all of them in one statement, under
the versions that were read. Rows that missed are locked by then, and the difference is added to
their stored values (:func:`rebase`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    CursorResult,
    Dialect,
    Integer,
    Numeric,
    Update,
    bindparam,
    case,
)
from sqlalchemy.exc import CompileError
from sqlalchemy.orm import NO_VALUE
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import parameter
from optilock.conditions.write import Lost, Shape, Write
from optilock.dialects import database_of
from optilock.dialects.rows import execute_unguarded
from optilock.mapped import State, facts
from optilock.serialize import difference, exact_sum
from optilock.watched.rows.stored import read_stored

#: The difference between the new value and the one that was read, by the new one's parameter.
Differences = Mapping[str, Any]

_ADD, _MADE = "optilock_add_", "optilock_made"


class StoredSums(NamedTuple):
    """The stored values after a write, as far as its result shows them."""

    version: Any
    #: Column -> value.
    values: Mapping[Column[Any], Any]


def differences(write: Write, state: State) -> Differences | None:
    """Return by how much the write changes the row; ``None`` where that is not known exactly."""
    names = facts(state.mapper).names
    found = {
        name: difference(state.committed_state.get(names[column], NO_VALUE), write.params[name])
        for name, column in write.shape.commuting.items()
    }
    return None if None in found.values() else found


# -- one row, in whatever version it is ------------------------------------------------------------


@dataclass(frozen=True)
class Adding:
    """The statement that adds, and the way in which its result shows the version."""

    statement: Update
    returned: tuple[Column[Any], ...]
    tells: bool
    #: The row is stored when the result shows the version: no other statement is needed.
    at_once: bool


def adding_for(shape: Shape, connection: Connection) -> Adding | None:
    """Return the statement that adds to rows of the shape; ``None``: it takes more than one."""
    if "adding" not in shape.forms:
        shape.forms["adding"] = _adding(shape, connection)
    found: Adding | None = shape.forms["adding"]
    return found


def _adding(shape: Shape, connection: Connection) -> Adding | None:
    class_facts, dialect = facts(shape.mapper), connection.dialect
    following = (
        None if class_facts.kind is None else class_facts.kind.following(class_facts.version)
    )
    if shape.sent_individually or not shape.exact or following is None:
        return None
    if not _can_compile(dialect, following):
        return None
    version: Column[Any] = class_facts.version
    made = bindparam(_MADE, type_=version.type)
    moved: Any = case((shape.token.clause(parameter), made), else_=following)
    returns = bool(dialect.update_returning)
    told = database_of(dialect).telling(moved) if isinstance(version.type, Integer) else None
    if told is not None and not returns:
        moved = told
    statement = _statement_adding(shape, version, moved)
    if returns:
        returned = (version, *shape.commuting.values())
        at_once = database_of(dialect).stores_before_rows_are_read
        return Adding(statement.returning(*returned), returned, tells=False, at_once=at_once)
    return Adding(statement, (), tells=told is not None, at_once=told is not None)


def _statement_adding(shape: Shape, version: Column[Any], moved: Any) -> Update:
    columns = shape.commuting.values()
    sums = {c: c + bindparam(f"{_ADD}{n}", type_=_wide(c.type)) for n, c in enumerate(columns)}
    where = [one.clause(parameter) for one in (*shape.keys, *shape.demanded)]
    where += [column.is_not(None) for column in columns if column.nullable]
    statement = shape.table.update().where(*where)
    return statement.values({**sums, version: moved, **shape.extra_values(parameter)})


def _wide(kind: Any) -> TypeEngine[Any]:
    """Return the type of a difference, which may be twice as much as the column holds."""
    return BigInteger() if isinstance(kind, Integer) else Numeric()


def _can_compile(dialect: Dialect, expression: Any) -> bool:
    """Return whether the database can make the version."""
    try:
        expression.compile(dialect=dialect)
    except CompileError:
        return False
    return True


def add_to_row(
    connection: Connection, write: Write, adding: Adding, more: Differences
) -> StoredSums | None:
    """Add to the row; return ``None`` if there is none, or if it fails a condition."""
    result = execute_unguarded(connection, adding.statement, adding_parameters(write, more))
    return read_answer(result, connection, write, adding)


def adding_parameters(write: Write, more: Differences) -> dict[str, Any]:
    """Return the parameters of the statement that adds."""
    shape, params = write
    sent = {name: value for name, value in params.items() if name not in shape.commuting}
    sent |= {f"{_ADD}{n}": more[name] for n, name in enumerate(shape.commuting)}
    sent[_MADE] = sent.pop(shape.token.column.key)
    return sent


def read_answer(
    result: CursorResult[Any], connection: Connection, write: Write, adding: Adding
) -> StoredSums | None:
    """Return the stored values; ``None``: there is no such row, or it fails a condition."""
    if adding.returned:
        row: Any = result.first()
        if row is None:
            return None
        return StoredSums(row[0], dict(zip(adding.returned[1:], row[1:], strict=True)))
    if not result.rowcount:
        return None
    return StoredSums(result.lastrowid if adding.tells else _read_version(connection, write), {})


def _read_version(connection: Connection, write: Write) -> Any:
    shape, params = write
    token, identity = facts(shape.mapper).token, shape.identity_of(params)
    found = read_stored(connection, shape.mapper, [identity], only=(token,), lock=False)
    return found[identity][token]


# -- a row that missed -----------------------------------------------------------------------------


def rebase(lost: Lost, more: Differences) -> Lost | None:
    """Return the write with the difference added to the stored values, in the stored version.

    ``None`` where there is nothing to add to, or another condition than the version has failed.
    """
    (shape, params), stored = lost.write, lost.stored
    if stored is None or lost.failed != (shape.token,):
        return None
    class_facts = facts(shape.mapper)
    before = {name: stored[class_facts.names[column]] for name, column in shape.commuting.items()}
    if None in before.values():
        return None
    sums = {name: exact_sum(value, more[name]) for name, value in before.items()}
    if None in sums.values():
        return None
    params = {**params, **sums, shape.token.parameter: stored[class_facts.token]}
    if shape.token.column.key in params:
        params[shape.token.column.key] = class_facts.next(stored[class_facts.token])
    return Lost(Write(shape, params), stored)
