"""What is stored of rows now, by their keys: with a lock, or as a plain query shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, select
from sqlalchemy.orm import Mapper

from optilock.conditions.condition import parameter
from optilock.dialects import Database, database_of
from optilock.dialects.waiting import Wait
from optilock.mapped import Identity, facts

__all__ = ["Values", "read_stored", "rows_at"]

Values = dict[str, Any]
#: In front of the number of a part of the key, as a parameter.
_KEY = "optilock_key_"


def read_stored(
    connection: Connection,
    mapper: Mapper[Any],
    identities: list[Identity],
    *,
    only: tuple[str, ...] = (),
    lock: bool = True,
    share: bool = False,
    deleting: bool = False,
    wait: Wait | None = None,
    also: Mapping[str, ColumnElement[Any]] | None = None,
    params: Mapping[str, Any] | None = None,
    briefly: bool = False,
) -> dict[Identity, Values]:
    """What is stored now, every column (or ``only`` some), for those of the rows that exist.

    And what ``also`` is asked of each, with ``params``. Is a lock of others waited for ``briefly``?
    """
    database = database_of(connection.dialect)
    how = _How(only, lock=lock, share=share, deleting=deleting, briefly=briefly)
    if len(identities) == 1 and wait is None and not also:
        return _read_one(connection, mapper, database, identities[0], how)
    names: Mapping[str, ColumnElement[Any]] = how.columns(mapper)
    if also:
        names = {**names, **also}
    keys = facts(mapper).rows[0]
    query = how.query(mapper, database, names, wait)
    return {
        tuple(row[: len(keys)]): dict(zip(names, row[len(keys) :], strict=True))
        for row in rows_at(connection, query, keys, identities, params)
    }


class _How(NamedTuple):
    """How rows are read: some columns or all of them, and with which lock."""

    only: tuple[str, ...]
    lock: bool
    share: bool
    deleting: bool
    briefly: bool

    def columns(self, mapper: Mapper[Any]) -> Mapping[str, ColumnElement[Any]]:
        known = facts(mapper).columns
        return {name: known[name] for name in self.only} if self.only else known

    def query(
        self,
        mapper: Mapper[Any],
        database: Database,
        names: Mapping[str, ColumnElement[Any]],
        wait: Wait | None = None,
    ) -> Select[Any]:
        """The keys of rows, and then these columns, in the order of the keys."""
        keys, rows = facts(mapper).rows
        query = select(*keys, *names.values()).select_from(rows).order_by(*keys)
        table = facts(mapper).table
        if self.briefly:
            query = query.where(*(one.clause(parameter) for one in database.brief_waits))
        if self.share:
            return database.share(query, table)
        if wait is not None:
            return database.lock_within(query, table, wait)
        return database.lock(query, table, deleting=self.deleting) if self.lock else query


class _One(NamedTuple):
    """The query for one row, made once."""

    query: Select[Any]
    #: Its parameters.
    keys: tuple[str, ...]
    names: tuple[str, ...]


def _read_one(
    connection: Connection, mapper: Mapper[Any], database: Database, identity: Identity, how: _How
) -> dict[Identity, Values]:
    shapes, place = facts(mapper).shapes, ("one row", database, how)
    one: _One | None = shapes.get(place)
    if one is None:
        columns, (keys, _) = how.columns(mapper), facts(mapper).rows
        given = tuple(f"{_KEY}{number}" for number, _ in enumerate(keys))
        same = [
            key == bindparam(name, type_=key.type) for key, name in zip(keys, given, strict=True)
        ]
        query = how.query(mapper, database, columns).where(*same)
        one = shapes[place] = _One(query, given, tuple(columns))
    width = len(one.keys)
    found = type(connection).execute(
        connection, one.query, dict(zip(one.keys, identity, strict=True))
    )
    return {tuple(row[:width]): dict(zip(one.names, row[width:], strict=True)) for row in found}


def rows_at(
    connection: Connection,
    query: Select[Any],
    keys: list[Any],
    identities: list[Identity],
    params: Mapping[str, Any] | None = None,
) -> Iterator[Row[Any]]:
    """The rows of ``query`` with these keys, in as many statements as that takes."""
    database = database_of(connection.dialect)
    step = database.keys_at_once(len(keys))
    for start in range(0, len(identities), step):
        some = query.where(database.at_keys(keys, identities[start : start + step]))
        yield from type(connection).execute(connection, some, params)
