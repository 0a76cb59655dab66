"""Which rows does a statement find? They are locked and looked at before it is sent.

This is the place for whatever an UPDATE or DELETE statement, of a class or of a table, has to
demand of its rows: :func:`rows_found` makes the look, by the statement's own WHERE. A demand is one
more column of the look, and one more condition of the statement that is sent
(:mod:`optilock.statements.demanded`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BinaryExpression,
    BindParameter,
    Connection,
    Delete,
    FunctionElement,
    Select,
    Table,
    TextClause,
    Update,
    select,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import operators, visitors

from optilock.dialects import database_of
from optilock.dialects.rows import with_hint
from optilock.mapped import Identity
from optilock.rows.stored import rows_at
from optilock.undocumented.statements import criteria_of, loader_options_of, prefixes_of

_NONE: Mapping[str, Any] = {}


def rows_found(
    connection: Connection,
    statement: Update | Delete,
    params: Any,
    table: Table,
    keys: list[Any],
    looks: Sequence[Any],
    wanted: Iterable[Identity] | None = None,
    bound: Mapping[str, Any] = _NONE,
) -> dict[Identity, tuple[Any, ...]]:
    """The rows that the statement will find, of those ``wanted``, with these columns; locked.

    With a list of parameters all that are wanted are looked at. ``bound``: parameters of ``looks``.
    """
    query = select(*keys, *looks).options(*loader_options_of(statement))
    if not isinstance(params, list):
        query = query.where(*criteria_of(statement))
        bound = {**(params or {}), **bound}
    database = database_of(connection.dialect)
    database.begin_writing(connection, table)

    def locked() -> Select[Any]:
        return database.lock(query, table, deleting=isinstance(statement, Delete))

    if wanted is None:
        found: Iterable[Any] = with_hint(
            database, table, lambda: connection.execute(locked().order_by(*keys), bound).all()
        )
    else:
        found = rows_at(connection, locked, table, keys, sorted(wanted, key=repr), bound)
    return {tuple(row[: len(keys)]): tuple(row[len(keys) :]) for row in found}


def finds_twice(session: Session, statement: Update) -> bool:
    """Does the UPDATE change just those rows that a SELECT with its WHERE has found before?

    Not with the criteria of a ``do_orm_execute`` listener, ``UPDATE ... LIMIT``, or functions such
    as ``random()``. A version that was not made must not be taken over: others may make it.
    """
    if session.dispatch.do_orm_execute or loader_options_of(statement):
        return False
    if statement.dialect_kwargs or prefixes_of(statement):
        return False
    where = statement.whereclause
    return where is None or not any(
        isinstance(one, (FunctionElement, TextClause)) for one in visitors.iterate(where)
    )


def key_named(mapper: Mapper[Any], statement: Update | Delete, params: Any) -> Identity | None:
    """The key of the only row that the statement can match, by ``WHERE id = ?``."""
    given = params if isinstance(params, Mapping) else {}
    if params and not given:
        return None  # many rows
    named = {
        one.left: given.get(one.right.key, one.right.value)
        for one in _conjunction(criteria_of(statement))
        if isinstance(one, BinaryExpression)
        and one.operator is operators.eq
        and isinstance(one.right, BindParameter)
    }
    identity = tuple(named.get(column) for column in mapper.primary_key)
    return None if None in identity else identity


def _conjunction(criteria: Iterable[Any]) -> Iterator[Any]:
    for one in criteria:
        if getattr(one, "operator", None) is operators.and_:
            yield from _conjunction(one.clauses)
        else:
            yield one
