"""Sending the held rows of one table: exactly the rows that missed come back.

Three forms, chosen by the database and the columns:

* one row: the native statement and its count;
* the **set form** (PostgreSQL): one statement that locks the rows in key order, compares, writes;
* **lock and look**: read and lock key and token of all rows in key order, keep those that still
  match, write them with ``executemany``.

Never is a miss concluded from "which rows do not carry our new number": another writer's counter
may carry the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sqlalchemy import Select, select, tuple_
from sqlalchemy.engine import Connection
from sqlalchemy.orm.exc import StaleDataError

from optilock.dialects import database_of
from optilock.guard.writes import Shape, Write

__all__ = ["judge", "lock_and_look", "must_match", "native", "present", "send"]


def native(connection: Connection, statement: Any, params: Any = None) -> Any:
    """Execute past the guard."""
    return type(connection).execute(connection, statement, params)


def send(connection: Connection, writes: list[Write]) -> list[Write]:
    """Write the rows of one table; return the ones that were changed or gone."""
    if len(writes) == 1:
        return _one(connection, writes[0])
    database = database_of(connection.dialect)
    form = database.batch_form(writes, connection.dialect)
    if form is None:
        return lock_and_look(connection, writes)
    return form.send(connection, writes)


def _one(connection: Connection, write: Write) -> list[Write]:
    result = native(connection, write.shape.statement, write.params)
    return [] if result.rowcount else [write]


def judge(connection: Connection, writes: list[Write]) -> tuple[list[Write], list[Write]]:
    """Lock the rows and look: the writes whose rows are as they were read, and the others."""
    shape = writes[0].shape
    stored = _locked_tokens(connection, shape, [write.key() for write in writes])
    matched: list[Write] = []
    missed: list[Write] = []
    for write in writes:
        found = stored.get(write.key())
        expected = tuple(write.params[c.parameter] for c in write.shape.conditions)
        (matched if found == expected else missed).append(write)
    return matched, missed


def lock_and_look(connection: Connection, writes: list[Write]) -> list[Write]:
    matched, missed = judge(connection, writes)
    for same, group in groupby(sorted(matched, key=_shape_order), key=lambda write: write.shape):
        same_writes = list(group)
        rows = [write.params for write in same_writes]
        result = native(connection, same.statement, rows if len(rows) > 1 else rows[0])
        if connection.dialect.supports_sane_multi_rowcount or len(rows) == 1:
            must_match(same, len(rows), result.rowcount)
        else:
            must_match(same, len(rows), _written(connection, same_writes))
    return missed


def _written(connection: Connection, writes: list[Write]) -> int:
    """How many of these locked rows carry what was written, for drivers that cannot add up."""
    shape = writes[0].shape
    stored = _locked_tokens(connection, shape, [write.key() for write in writes])
    if shape.deletes:
        return len(writes) - len(stored)
    token = shape.token.column.key
    return sum(stored.get(write.key(), (None,))[0] == write.params[token] for write in writes)


def _shape_order(write: Write) -> int:
    return id(write.shape)


def _locked_tokens(
    connection: Connection, shape: Shape, keys: list[tuple[Any, ...]]
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Key -> what the conditions compare, for the rows that exist, locked in key order."""
    database = database_of(connection.dialect)
    database.begin_writing(connection, shape.table)
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    columns = [condition.column for condition in (*shape.keys, *shape.conditions)]
    width = len(shape.keys)
    for some in _chunks(keys, database.max_parameters, width):
        query = database.lock(
            _where_key_in(select(*columns), shape, some), shape.table, deleting=shape.deletes
        )
        for row in native(connection, query):
            found[tuple(row[:width])] = tuple(row[width:])
    return found


def present(
    connection: Connection, shape: Shape, keys: list[tuple[Any, ...]]
) -> set[tuple[Any, ...]]:
    """Those of ``keys`` that are in the table."""
    found: set[tuple[Any, ...]] = set()
    database = database_of(connection.dialect)
    for some in _chunks(keys, database.max_parameters, len(shape.keys)):
        query = _where_key_in(select(*(key.column for key in shape.keys)), shape, some)
        found.update(tuple(row) for row in native(connection, query))
    return found


def _where_key_in(query: Select[Any], shape: Shape, keys: list[tuple[Any, ...]]) -> Select[Any]:
    columns = [key.column for key in shape.keys]
    if len(columns) == 1:
        matching = columns[0].in_([key[0] for key in keys])
    else:
        matching = tuple_(*columns).in_(keys)
    return query.where(matching).order_by(*columns)


def _chunks(
    keys: list[tuple[Any, ...]], limit: int | None, width: int
) -> Iterator[list[tuple[Any, ...]]]:
    step = len(keys) if limit is None else max(1, limit // width)
    for start in range(0, len(keys), step):
        yield keys[start : start + step]


def must_match(shape: Shape, expected: int, matched: int) -> None:
    """A row that is locked and matches is written, unless a trigger or a policy prevents it."""
    if matched != expected:
        verb = "delete" if shape.deletes else "update"
        raise StaleDataError(
            f"{verb.upper()} statement on table '{shape.table.description}' expected to {verb}"
            f" {expected} row(s); {matched} were matched."
        )
