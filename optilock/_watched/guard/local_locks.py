"""Promised rows, written as they are where a lock does not reach every writer.

A lock does not reach all writers on a Galera cluster, whose nodes compare what transactions have
*written*: a row that is locked on one node is free on the others
(:meth:`optilock.dialects.servers.Servers.locks_are_local`). There the version of a promised row is
moved, and moved back: two statements a table. A transaction of another node that writes the row, or
promises the same of it, then conflicts with ours, and one of the two fails at COMMIT. The stored
version is the one from before, so ETags that clients hold stay valid. A version that a trigger
makes cannot be moved back: it moves by one step (``RowVersion``).
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from sqlalchemy import Column, Connection, DateTime, Table, and_, case, literal, update
from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock._watched.session.values import Promise
from optilock.conditions.write import mark_checked
from optilock.dialects.values import rows_with_keys
from optilock.errors import ConfigurationError


def write_as_they_are(connection: Connection, mapper: Mapper[Any], some: list[Promise]) -> None:
    """Write these rows, which are locked and as they were promised.

    Raises:
        ConfigurationError: no other value of this kind of version is known.
    """
    table, version = facts(mapper).table, facts(mapper).version
    keys = list(_keys(mapper, table))
    rows = mark_checked(update(table)).where(rows_with_keys(keys, [one.identity for one in some]))
    others: dict[Any, Any] = {column: column for column in table.columns if _moves(column)}
    send = type(connection).execute  # not the functions that a flush has put over it
    kind = facts(mapper).kind
    if kind is not None and kind.has_trigger:
        send(connection, rows.values({**others, version: version}))
        return
    moved = kind and kind.following(version)
    if moved is None:
        moved = literal(_another(mapper, {one.version for one in some}), version.type)
    send(connection, rows.values({**others, version: moved}))
    seen = case(*((_is_row(keys, one), literal(one.version, version.type)) for one in some))
    send(connection, rows.values({**others, version: seen}))


def _keys(mapper: Mapper[Any], table: Table) -> Iterator[Column[Any]]:
    """Yield the key columns, in the table of the version."""
    for key, own in zip(facts(mapper).rows[0], table.primary_key.columns, strict=False):
        yield key if key.table is table else own


def _is_row(keys: list[Column[Any]], one: Promise) -> Any:
    return and_(*(key == value for key, value in zip(keys, one.identity, strict=True)))


def _moves(column: Column[Any]) -> bool:
    """Return whether an UPDATE that does not name the column changes it.

    A time may have ``ON UPDATE CURRENT_TIMESTAMP`` in the database alone.
    """
    if column.computed is not None or column.primary_key:
        return False
    kept = column.onupdate is not None or column.server_onupdate is not None
    return kept or isinstance(column.type, DateTime)


def _another(mapper: Mapper[Any], seen: set[Any]) -> Any:
    """Return a version that none of the rows has."""
    values = _values_like(next(iter(seen)))
    if values is None:
        name = mapper.class_.__name__
        raise ConfigurationError(
            f"A row of {name} was only verified, and this is a node of a Galera cluster, where it"
            " has to be written for that: optilock knows no other value for a version of that"
            f" type. Write the row in your own way (assign the next version of {name}), or give"
            " the class the token Counter(). Nothing is committed."
        )
    return next(value for value in values if value not in seen)


def _values_like(value: Any) -> Iterable[Any] | None:
    if isinstance(value, int):
        return count()
    if isinstance(value, str):
        return map(str, count())
    if isinstance(value, bytes):
        return (bytes(number) for number in count())
    if isinstance(value, uuid.UUID):
        return (uuid.UUID(int=number) for number in count())
    if isinstance(value, datetime.datetime):
        start = datetime.datetime(2000, 1, 1, tzinfo=value.tzinfo)
        return (start + datetime.timedelta(seconds=number) for number in count())
    return None
