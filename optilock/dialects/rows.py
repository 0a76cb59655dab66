"""Rows found, locked and judged by their keys: what every form of writing stands on.

``lock and look`` is the form that any database with row locks can do: read and lock the rows in key
order, with the columns of their conditions, keep those whose conditions are all true, and write
them with ``executemany``. Where no row can be locked, each row has its own statement and is judged
by its count. Databases with a better form return it from :class:`~optilock.dialects.forms.Forms`.

Some dialects of SQLAlchemy leave FOR UPDATE out without a word, because their database has no such
thing. There a row could change between the look and the write:
:meth:`~optilock.dialects.locks.RowLocks.require` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from optilock.conditions.condition import Match, demanded_parameters
from optilock.conditions.write import Shape, Write
from optilock.dialects.keys import RowKeys
from optilock.dialects.locks import RowLocks
from optilock.errors import ConfigurationError, NotWritten, OptilockError

Key = tuple[Any, ...]
T = TypeVar("T")

#: CLIENT_FOUND_ROWS of the protocol (https://mariadb.com/kb/en/connection/#capabilities).
FOUND_ROWS = 2


def execute_unguarded(connection: sa.Connection, statement: Any, params: Any = None) -> Any:
    """Execute past the guard."""
    return type(connection).execute(connection, statement, params)


def ask_with_hint(database: Locks, table: sa.Table, ask: Callable[[], T]) -> T:
    """The answer to a locking read that ``ask`` makes and sends; again, if its hint was refused."""
    try:
        return ask()
    except DBAPIError as error:
        if not database.keys.refused_hint(table, error):
            raise
    return ask()


def lock_in_turn(
    database: Locks,
    table: sa.Table,
    keys: Sequence[Key],
    ask: Callable[[Sequence[Key]], Iterable[T]],
) -> Iterable[T]:
    """The rows with these keys, locked: together, or in turn where the server refuses that."""
    try:
        return ask_with_hint(database, table, lambda: ask(keys))
    except DBAPIError as error:
        if len(keys) == 1 or not database.keys.refuses_many(error):
            raise
    in_turn = (ask_with_hint(database, table, partial(ask, [key])) for key in keys)
    return chain.from_iterable(in_turn)


class EachAlone:
    """One statement a row, and its count: for databases that cannot lock a row."""

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""
        return [
            write
            for write in writes
            if not execute_unguarded(connection, write.shape.statement, write.params).rowcount
        ]


class LockAndLook:
    """Two steps: lock and compare all rows, then write those that match."""

    def __init__(self, database: Locks) -> None:
        self._database = database

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""
        matched, missed = judge(self._database, connection, writes)
        for same in group_by_shape(matched):
            missed = [*missed, *self.write(connection, same[0].shape, same)]
        return missed

    def write(self, connection: sa.Connection, shape: Shape, writes: list[Write]) -> list[Write]:
        """Write them; return those with a condition that is no longer true."""
        rows = [write.params for write in writes]
        kept = not self._database.locks.autocommits(
            connection
        )  # is what we looked at still locked?
        statement = shape.judged if kept else shape.statement
        result = execute_unguarded(connection, statement, rows if len(rows) > 1 else rows[0])
        if result.returns_rows:
            written = len(result.all())  # SQLite counts them when they are read
        elif connection.dialect.supports_sane_multi_rowcount or len(rows) == 1:
            written = result.rowcount
        else:
            written = self._written(connection, writes)
        lost: list[Write] = []
        if written != len(rows) and shape.demanded:
            lost = self._not_as_demanded(connection, writes)
        must_match(connection, shape.table, len(rows) - len(lost), written, deleting=shape.deletes)
        return lost

    def _not_as_demanded(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Return those that fail a demand of the session, on the row or next to it."""
        stored = lock_and_read(self._database, connection, writes)
        return [
            write
            for write in writes
            if (found := stored.get(write.key())) is not None
            and any(not isinstance(one, Match) for one in write.failed(found))
        ]

    def _written(self, connection: sa.Connection, writes: list[Write]) -> int:
        """How many of these locked rows carry what was written, for drivers that cannot add up."""
        shape = writes[0].shape
        stored = lock_and_read(self._database, connection, writes)
        if shape.deletes:
            return len(writes) - len(stored)
        token = shape.token.column.key
        if token not in shape.sets:  # the database makes the version, or there is none
            return len(stored)
        return sum(stored.get(write.key(), (None,))[0] == write.params[token] for write in writes)


def judge(
    database: Locks, connection: sa.Connection, writes: list[Write]
) -> tuple[list[Write], list[Write]]:
    """Lock the rows and look: the writes whose rows are as they were read, and the others."""
    shape = writes[0].shape
    if shape.locked and not shape.demanded:
        return writes, []
    stored = lock_and_read(database, connection, writes)
    matched: list[Write] = []
    missed: list[Write] = []
    for write in writes:
        found = stored.get(write.key())
        if shape.demanded:
            stands = found is not None and not write.failed(found)
        else:
            stands = found == tuple([write.params[one.parameter] for one in shape.matches])
        (matched if stands else missed).append(write)
    return matched, missed


def have_mixed_types(values: Iterable[Any]) -> bool:
    """Return whether they have several Python types, which one array or table cannot hold."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    return len(kinds) > 1


def group_by_shape(writes: list[Write]) -> list[list[Write]]:
    """The writes of each shape, in the order that they have."""
    found: dict[int, list[Write]] = {}
    for write in writes:
        found.setdefault(id(write[0]), []).append(write)
    return list(found.values())


def lock_and_read(
    database: Locks, connection: sa.Connection, writes: list[Write]
) -> dict[Key, tuple[Any, ...]]:
    """Key -> what the conditions look at, for the rows that exist, locked in key order."""
    shape, params = writes[0]
    keys = [write.key() for write in writes]
    database.locks.begin_writing(connection, shape.table)
    found: dict[Key, tuple[Any, ...]] = {}
    conditions = (*shape.keys, *shape.conditions)
    columns = [column for condition in conditions for column in condition.looks]
    values = demanded_parameters(params) if shape.demanded else None
    width = len(shape.keys)
    step = database.keys.keys_at_once(width)

    def ask(some: Sequence[Key]) -> Any:
        query = _where_key_in(database, sa.select(*columns), shape, some)
        locked = database.locks.lock(query, shape.table, deleting=shape.deletes)
        return execute_unguarded(connection, locked, values)

    for some in (keys[start : start + step] for start in range(0, len(keys), step)):
        for row in lock_in_turn(database, shape.table, some, ask):
            found[tuple(row[:width])] = tuple(row[width:])
    return found


def _where_key_in(
    database: Locks, query: sa.Select[Any], shape: Shape, keys: Sequence[Key]
) -> sa.Select[Any]:
    columns = [key.column for key in shape.keys]
    return query.where(database.keys.at_keys(columns, keys)).order_by(*columns)


def not_written(connection: sa.Connection, what: str, verb: str) -> OptilockError:
    """Return the error of a row that is as it was read, and that the database did not write.

    ``what`` has happened, in a sentence. A connection of MariaDB may count changed rows only; then
    a row that has the new values already is not counted.
    """
    uncounted = False if verb == "delete" else misses_equal_rows(connection)
    if uncounted:
        return ConfigurationError(
            f"{what} The driver counts the rows that an UPDATE changes, not those that it finds, so"
            " a row with equal values counts as lost: let SQLAlchemy make the connection, or give"
            " your creator= the flag CLIENT.FOUND_ROWS."
        )
    or_flag = "" if uncounted is False else ", or a connection without the flag CLIENT.FOUND_ROWS,"
    return NotWritten(
        f"{what} A trigger, a rule or a policy of the database (row-level security){or_flag}"
        f" prevents the {verb}: change that, or leave the row alone."
    )


def misses_equal_rows(connection: sa.Connection) -> bool | None:
    """Return whether an UPDATE counts only the rows that it changes; ``None``: it is unknown."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return False
    flags = getattr(connection.connection.driver_connection, "client_flag", None)
    return not flags & FOUND_ROWS if isinstance(flags, int) else None


def must_match(
    connection: sa.Connection, table: sa.Table, expected: int, matched: int, *, deleting: bool
) -> None:
    """A row that is locked and matches is written, unless a trigger or a rule prevents it.

    Raises:
        OptilockError: fewer rows were written than are locked (:func:`not_written`).
    """
    if matched != expected:
        verb = "delete" if deleting else "update"
        raise not_written(  # SQLAlchemy's own words come first
            connection,
            f"{verb.upper()} statement on table '{table.description}' expected to {verb}"
            f" {expected} row(s); {matched} were matched. The rows are locked and as they were"
            " read, so this is no conflict.",
            verb,
        )


class Locks(Protocol):
    """The answers of a database for locking rows and reading them."""

    @property
    def keys(self) -> RowKeys: ...
    @property
    def locks(self) -> RowLocks: ...


# -- ``executemany`` with the count of each row ----------------------------------------------------
#
# Drivers only add the counts up. The event ``do_executemany`` replaces the driver's loop; logs and
# tracers still see one ``executemany``.

#: From a cursor, the statement, its rows and SQLAlchemy's context: the count of each row.
Loop = Callable[[Any, str, Sequence[Mapping[str, Any]], Any], Iterable[int]]

_OPTION = "optilock_counts"
#: Not asked of ``event.contains``, which knows a dialect by its address, and so takes a new one now
#: and then for one that is gone.
_listening: WeakSet[sa.Dialect] = WeakSet()


class _Asked(NamedTuple):
    """The option of one execution."""

    loop: Loop
    counts: list[int]


def execute_counted(
    connection: sa.Connection, statement: Any, rows: list[dict[str, Any]], loop: Loop
) -> list[int]:
    """Execute the statement past the guard, for each of the rows, and return their counts."""
    if connection.dialect not in _listening:
        sa.event.listen(connection.dialect, "do_executemany", _counting)
        _listening.add(connection.dialect)
    asked = _Asked(loop, [])
    result = type(connection).execute(
        connection, statement, rows, execution_options={_OPTION: asked}
    )
    if len(rows) == 1:  # a list of one is no executemany: the event is not asked
        return [result.rowcount]
    return asked.counts


def _counting(cursor: Any, statement: str, rows: Any, context: Any) -> bool | None:
    asked: _Asked | None = context and context.execution_options.get(_OPTION)
    if asked is None:
        return None
    asked.counts.extend(asked.loop(cursor, statement, rows, context))
    return True
