"""The stored values of rows, by their keys: with a lock, or as a plain query shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    or_,
    select,
)
from sqlalchemy.orm import Mapper

from optilock._columns.identities import identity_in
from optilock._mapped import Facts, Identity, facts
from optilock.conditions.condition import parameter
from optilock.dialects import Database, database_of
from optilock.dialects.rows import ask_with_hint, lock_in_turn
from optilock.dialects.waits import Wait
from optilock.errors import NotWritten

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
    hidden: bool = False,
) -> dict[Identity, Values]:
    """Return the stored values, of all columns or ``only`` some, of those rows that exist.

    ``also`` are further columns, with their ``params``. ``briefly`` waits only a short time for
    another transaction's lock, or not at all. ``hidden`` also returns rows that a policy hides from
    a lock.

    Raises:
        NotWritten: a row can be read and not be locked, so it is not gone.
    """
    database, known = database_of(connection.dialect), facts(mapper)
    how = _How(only, lock=lock, share=share, deleting=deleting, briefly=briefly)
    names: Mapping[str, ColumnElement[Any]] = how.columns(known)
    if also:
        names = {**names, **also}
    by_row = _ReadByRow(connection, known, database, names, params)
    if len(identities) > 1:
        found = _read_together(by_row, identities, how, wait, is_kept=wait is None and not also)
    elif wait is None and not also:
        found = _read_one(connection, known, database, identities[0], how) if identities else {}
    else:
        row = by_row.read(identities[0], how, wait)
        found = {} if row is None else {identities[0]: row}
    if not ((how.briefly and how.share) or (wait is not None and wait.skip)):
        by_row.add_missing(found, identities, how, wait, hidden=hidden)
    return found


def _read_together(
    by_row: _ReadByRow, identities: list[Identity], how: _How, wait: Wait | None, *, is_kept: bool
) -> dict[Identity, Values]:
    connection, known, database, names, params = by_row
    keys, table = known.rows[0], known.table
    if is_kept:
        query = partial(_query_of_rows, known, database, how)
    else:
        query = partial(how.query, known, database, names, wait)
    return {
        tuple(row[: len(keys)]): dict(zip(names, row[len(keys) :], strict=True))
        for row in rows_at(connection, query, table, keys, identities, params)
    }


class _ReadByRow(NamedTuple):
    """A read of rows one by one, with the comparison of a statement that writes one row.

    A row that is missing among several is called gone only after it. A list of keys is compared in
    another way (:func:`~optilock.dialects.values.key_is_one_of`), a setting may cut the result, and
    the database may return a key as another value than the given one.
    """

    connection: Connection
    known: Facts
    database: Database
    names: Mapping[str, ColumnElement[Any]]
    params: Mapping[str, Any] | None

    def add_missing(
        self,
        found: dict[Identity, Values],
        identities: list[Identity],
        how: _How,
        wait: Wait | None,
        *,
        hidden: bool,
    ) -> None:
        """Add rows to ``found`` that a list of keys, or a lock, did not find."""
        locks = self.database.locks.hides_from_locks and (how.lock or how.share)
        if not (locks or len(identities) > 1):
            return
        for identity in identities:
            if identity not in found:
                if locks:
                    row = self.read_unlocked(identity, how, wait, hidden=hidden)
                else:
                    row = self.read(identity, how, wait)
                if row is not None:
                    found[identity] = row

    def read_unlocked(
        self, identity: Identity, how: _How, wait: Wait | None, *, hidden: bool
    ) -> Values | None:
        """Return a row that a locking read did not find, if it exists all the same."""
        seen = self.read(identity, how.unlocked, None)
        if seen is None:
            return None
        found = self.read(identity, how, wait)  # another transaction may have inserted it by now
        if found is None and not hidden:
            raise cannot_be_locked(self.known.mapper, identity)
        return found or seen

    def read(self, identity: Identity, how: _How, wait: Wait | None) -> Values | None:
        keys, table = self.known.rows[0], self.known.table
        here = [key == value for key, value in zip(keys, identity, strict=True)]

        def ask() -> Any:
            query = how.query(self.known, self.database, self.names, wait).where(*here)
            return _sent(self.connection, query, self.params)

        row = ask_with_hint(self.database, table, ask).first()
        return None if row is None else dict(zip(self.names, row[len(keys) :], strict=True))


def cannot_be_locked(mapper: Mapper[Any], identity: Identity) -> NotWritten:
    """Return the error of a row that exists, and that a policy keeps from being locked."""
    return NotWritten(
        f"{mapper.class_.__name__} {identity!r} cannot be locked, so nothing was written: the row"
        " exists and can be read, and this is no conflict. Row-level security (a policy FOR UPDATE)"
        " does not let this user write it: change the policy, use another role, or leave the row"
        " alone."
    )


def _sent(connection: Connection, query: Select[Any], params: Any) -> Any:
    return type(connection).execute(connection, query, params)


class _How(NamedTuple):
    """The way in which rows are read: some columns or all of them, and with which lock."""

    only: tuple[str, ...]
    lock: bool
    share: bool
    deleting: bool
    briefly: bool

    @property
    def unlocked(self) -> _How:
        return _How(self.only, lock=False, share=False, deleting=self.deleting, briefly=False)

    def columns(self, known: Facts) -> Mapping[str, ColumnElement[Any]]:
        every = known.columns
        return {name: every[name] for name in self.only} if self.only else every

    def query(
        self,
        known: Facts,
        database: Database,
        names: Mapping[str, ColumnElement[Any]],
        wait: Wait | None = None,
    ) -> Select[Any]:
        """Return the query for the keys of rows, then these columns, in the order of the keys."""
        (keys, rows), table = known.rows, known.table
        query = select(*keys, *names.values()).select_from(rows).order_by(*keys)
        if self.briefly:
            query = query.where(*(one.clause(parameter) for one in database.waits.brief_waits))
        if self.share:
            return database.locks.share(query, table, briefly=self.briefly)
        if wait is not None:
            return database.locks.lock_within(query, table, wait)
        return database.locks.lock(query, table, deleting=self.deleting) if self.lock else query


class _One(NamedTuple):
    """The query for one row, made once."""

    query: Select[Any]
    #: Its parameters.
    keys: tuple[str, ...]
    names: tuple[str, ...]


def _read_one(
    connection: Connection, known: Facts, database: Database, identity: Identity, how: _How
) -> dict[Identity, Values]:
    def ask() -> Any:
        one = _query_of_one(known, database, how)
        given = dict(zip(one.keys, identity, strict=True))
        return one.names, type(connection).execute(connection, one.query, given)

    names, found = ask_with_hint(database, known.table, ask)
    width = len(identity)
    rows = [dict(zip(names, row[width:], strict=True)) for row in found]
    return {identity: rows[0]} if rows else {}


def _query_of_rows(known: Facts, database: Database, how: _How) -> Select[Any]:
    """Return the query for rows without their keys, made once."""
    place = "rows", database, how, database.keys.has_hint(known.table)
    query: Select[Any] | None = known.shapes.get(place)
    if query is None:
        query = known.shapes[place] = how.query(known, database, how.columns(known))
    return query


def _query_of_one(known: Facts, database: Database, how: _How) -> _One:
    place = "one row", database, how, database.keys.has_hint(known.table)
    one: _One | None = known.shapes.get(place)
    if one is None:
        columns, (keys, _) = how.columns(known), known.rows
        given = tuple(f"{_KEY}{number}" for number, _ in enumerate(keys))
        same = [
            key == bindparam(name, type_=key.type) for key, name in zip(keys, given, strict=True)
        ]
        query = how.query(known, database, columns).where(*same)
        one = known.shapes[place] = _One(query, given, tuple(columns))
    return one


#: Of more rows the reads of a check are no single statement.
MOST_CHECKED = 8


def unmoved_or_error(
    database: Database, mapper: Mapper[Any], rows: Sequence[tuple[Any, ...]], *, briefly: bool
) -> tuple[Any, Values] | None:
    """Return SQL that shares these rows, by their keys and versions, or else raises an error.

    ``None``: the database has no such statement, or it would be too long.
    """
    if len(rows) > MOST_CHECKED:
        return None
    names = [
        [f"{_KEY}{number}_{part}" for part, _ in enumerate(row)] for number, row in enumerate(rows)
    ]
    known, place = facts(mapper), ("unmoved", database, len(rows), briefly)
    shapes = known.shapes
    if place not in shapes:
        how = _How((known.token,), lock=False, share=True, deleting=False, briefly=briefly)
        columns = how.columns(known)
        compared = [*known.rows[0], *columns.values()]
        each = (_same(compared, parameters) for parameters in names)
        query = how.query(known, database, columns).where(or_(*each))
        shapes[place] = database.forms.found_or_error(query, len(rows))
    statement, pairs = shapes[place], zip(names, rows, strict=True)
    given = {name: value for each in pairs for name, value in zip(*each, strict=True)}
    return None if statement is None else (statement, given)


def _same(columns: list[Any], names: list[str]) -> ColumnElement[bool]:
    pairs = zip(columns, names, strict=True)
    return and_(*(column == bindparam(name, type_=column.type) for column, name in pairs))


def rows_at(
    connection: Connection,
    query: Callable[[], Select[Any]],
    table: Table,
    keys: list[Any],
    identities: list[Identity],
    params: Mapping[str, Any] | None = None,
) -> Iterator[Row[Any]]:
    """Yield the rows of ``query`` with these keys, in as many statements as that takes."""
    database = database_of(connection.dialect)
    step = database.keys.keys_at_once(len(keys))

    def ask(some: Sequence[Identity]) -> Any:
        return _sent(connection, query().where(database.keys.at_keys(keys, some)), params).all()

    for start in range(0, len(identities), step):
        some = identities[start : start + step]
        yield from lock_in_turn(database, table, some, ask)


def stored_key(connection: Connection, mapper: Mapper[Any], identity: Identity) -> Identity | None:
    """Return the key as the database returns it; ``None``: there is no such row."""
    names = tuple(name for name in facts(mapper).keys if name in facts(mapper).columns)
    found = read_stored(connection, mapper, [identity], only=names, lock=False)
    stored = next(iter(found.values()), None)
    return None if stored is None else identity_in(mapper, identity, stored)
