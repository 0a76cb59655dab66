"""Increments: a write that adds to columns, whatever the version of its row is.

::

    UPDATE pages SET likes = likes + :1, version = CASE WHEN version = :read THEN :made
        ELSE version + 1 END WHERE id = :id RETURNING version, likes

That is the write of the same row without the version's condition, and with the difference in the
place of the value (``__version_commutes__``, :mod:`optilock.mapping.commuting`). Everything else
that is demanded of the row stays in the WHERE.

The version moves by one, and its new value tells whether the row was as it had been read: only then
it is the one that Python has made. Where the database has no RETURNING its answer tells a number
(``telling`` of a database), or the version is read once more.

A row that goes together with others is written as ever, all of them in one statement, under the
versions that were read. Of those that missed, the difference is added to what is stored
(:func:`rebased`): they are locked by then.
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
from optilock.dialects.rows import native
from optilock.mapped import State, facts
from optilock.serialize import difference, plus
from optilock.watched.rows.stored import read_stored

#: By the parameter of the new value: how much that is more than what was read.
Differences = Mapping[str, Any]

_ADD, _MADE = "optilock_add_", "optilock_made"


class Told(NamedTuple):
    """What is stored after a write, as far as its answer tells."""

    version: Any
    #: Column -> value.
    values: Mapping[Column[Any], Any]


def differences(write: Write, state: State) -> Differences | None:
    """By how much the write changes the row; ``None`` where that is not known exactly."""
    names = facts(state.mapper).names
    found = {
        name: difference(state.committed_state.get(names[column], NO_VALUE), write.params[name])
        for name, column in write.shape.commuting.items()
    }
    return None if None in found.values() else found


# -- one row, in whatever version it is ------------------------------------------------------------


@dataclass(frozen=True)
class Adding:
    """The statement that adds, and how its answer tells the version."""

    statement: Update
    returned: tuple[Column[Any], ...]
    tells: bool
    #: The row is stored when the answer has told the version: no other statement is needed.
    at_once: bool


def adds(shape: Shape, connection: Connection) -> Adding | None:
    """How rows of the shape are added to; ``None``: not by one statement."""
    if "adding" not in shape.forms:
        shape.forms["adding"] = _adding(shape, connection)
    found: Adding | None = shape.forms["adding"]
    return found


def _adding(shape: Shape, connection: Connection) -> Adding | None:
    known, dialect = facts(shape.mapper), connection.dialect
    following = None if known.kind is None else known.kind.following(known.version)
    if shape.alone or not shape.exact or following is None or not _says(dialect, following):
        return None
    version: Column[Any] = known.version
    made = bindparam(_MADE, type_=version.type)
    moved: Any = case((shape.token.clause(parameter), made), else_=following)
    returns = bool(dialect.update_returning)
    told = database_of(dialect).telling(moved) if isinstance(version.type, Integer) else None
    if told is not None and not returns:
        moved = told
    columns = shape.commuting.values()
    sums = {c: c + bindparam(f"{_ADD}{n}", type_=_wide(c.type)) for n, c in enumerate(columns)}
    where = [one.clause(parameter) for one in (*shape.keys, *shape.demanded)]
    where += [column.is_not(None) for column in columns if column.nullable]
    statement = shape.table.update().where(*where)
    statement = statement.values({**sums, version: moved, **shape.gives(parameter)})
    if returns:
        returned = (version, *columns)
        at_once = database_of(dialect).stores_before_rows_are_read
        return Adding(statement.returning(*returned), returned, tells=False, at_once=at_once)
    return Adding(statement, (), tells=told is not None, at_once=told is not None)


def _wide(kind: Any) -> TypeEngine[Any]:
    """The type of a difference, which may be twice as much as the column holds."""
    return BigInteger() if isinstance(kind, Integer) else Numeric()


def _says(dialect: Dialect, expression: Any) -> bool:
    """Can the database make the version?"""
    try:
        expression.compile(dialect=dialect)
    except CompileError:
        return False
    return True


def add(connection: Connection, write: Write, adding: Adding, more: Differences) -> Told | None:
    """Add to the row; ``None``: there is none, or it is not as demanded."""
    result = native(connection, adding.statement, sum_of(write, more))
    return told_by(result, connection, write, adding)


def sum_of(write: Write, more: Differences) -> dict[str, Any]:
    """The parameters of the statement that adds."""
    shape, params = write
    sent = {name: value for name, value in params.items() if name not in shape.commuting}
    sent |= {f"{_ADD}{n}": more[name] for n, name in enumerate(shape.commuting)}
    sent[_MADE] = sent.pop(shape.token.column.key)
    return sent


def told_by(
    result: CursorResult[Any], connection: Connection, write: Write, adding: Adding
) -> Told | None:
    """What the answer tells; ``None``: there is no such row, or it is not as demanded."""
    if adding.returned:
        row: Any = result.first()
        if row is None:
            return None
        return Told(row[0], dict(zip(adding.returned[1:], row[1:], strict=True)))
    if not result.rowcount:
        return None
    return Told(result.lastrowid if adding.tells else _read_version(connection, write), {})


def _read_version(connection: Connection, write: Write) -> Any:
    shape, params = write
    token, identity = facts(shape.mapper).token, shape.identity_of(params)
    found = read_stored(connection, shape.mapper, [identity], only=(token,), lock=False)
    return found[identity][token]


# -- a row that missed -----------------------------------------------------------------------------


def rebased(lost: Lost, more: Differences) -> Lost | None:
    """The write with the difference added to what is stored, and in the version that is stored.

    ``None`` where there is nothing to add to, or something else than the version has failed.
    """
    (shape, params), stored = lost.write, lost.stored
    if stored is None or lost.failed != (shape.token,):
        return None
    known = facts(shape.mapper)
    before = {name: stored[known.names[column]] for name, column in shape.commuting.items()}
    if None in before.values():
        return None
    sums = {name: plus(value, more[name]) for name, value in before.items()}
    if None in sums.values():
        return None
    params = {**params, **sums, shape.token.parameter: stored[known.token]}
    if shape.token.column.key in params:
        params[shape.token.column.key] = known.next(stored[known.token])
    return Lost(Write(shape, params), stored)
