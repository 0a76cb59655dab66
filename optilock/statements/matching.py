"""Which rows does a statement find? They are locked and looked at before it is sent.

This is the place for whatever an UPDATE or DELETE statement, of a class or of a table, has to
demand of its rows: :func:`rows_found` makes the look, by the statement's own WHERE. A demand is one
more column of the look, and one more condition of the statement that is sent.

What the *session* demands of all its rows joins the WHERE of the statement. That alone would
silently leave out a row of which it is not true: so every row that matches is locked first and
looked at, with the database's verdict (:func:`under_demands`). Looking for rows that fail would not
do, because one could be taken while the statement waits.
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
    Table,
    TextClause,
    Update,
    select,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql import operators, visitors

from optilock.conditions.condition import explained, failed
from optilock.conditions.demands import Demands
from optilock.dialects import database_of
from optilock.errors import Action, ConcurrencyError, Entry
from optilock.mapped import Identity, facts
from optilock.rows.sides import Attempt, entry_of, read_stored, rows_at
from optilock.statements.call import Call
from optilock.undocumented import criteria_of, loader_options_of, prefixes_of

__all__ = ["finds_twice", "key_named", "rows_found", "under_demands"]

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
    query = database.lock(query, table, deleting=isinstance(statement, Delete))
    if wanted is None:
        found: Iterable[Any] = connection.execute(query.order_by(*keys), bound).all()
    else:
        found = rows_at(connection, query, keys, sorted(wanted, key=repr), bound)
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


def under_demands(call: Call, mapper: Mapper[Any], demands: Demands) -> Call:
    """The same call under the demands of its session.

    Raises:
        Exception: what a condition explains, for a row that matches and of which it is not true;
            a ``ConcurrencyError`` where it explains nothing.
    """
    conditions = demands.on(mapper)
    if not conditions:
        return call
    call.flush_before()
    by_key = isinstance(call.params, list)
    connection, known = call.connection(mapper), facts(mapper)
    keys = [getattr(mapper.class_, name) for name in known.keys]
    clauses = [one.clause(demands.bound) for one in demands.on(mapper, mapper.local_table)]
    looks = [look for one in conditions for look in one.looks]
    wanted = None
    if by_key:  # SQLAlchemy takes no WHERE beside the keys: the rows are locked now
        wanted = [tuple(row[name] for name in known.keys) for row in call.params]
    found = rows_found(
        connection, call.statement, call.params, known.table, keys, looks, wanted, demands.params
    )
    for identity, seen in found.items():
        wrong = failed(conditions, demands.params, seen)
        if wrong:
            stored = read_stored(connection, mapper, [identity])
            action: Action = "delete" if isinstance(call.statement, Delete) else "update"
            attempt = Attempt(mapper, identity, action, {}, {}, {})
            entry: Entry[Any] = entry_of(attempt, stored.get(identity))
            raise explained(wrong, entry) or ConcurrencyError([entry])
    return call if by_key else call.with_statement(call.statement.where(*clauses))
