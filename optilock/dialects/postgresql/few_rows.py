"""A few rows: the statement of a single row for each of them, in one of psycopg's pipelines.

The statement for many rows (:mod:`~optilock.dialects.postgresql.rows`) costs the server as much as
several statements for one row do. Sent together, these are one round trip as well, and each reports
whether its row matched. psycopg's ``executemany`` would only report the total.

Before them the rows are locked in key order, those that will miss as well: an UPDATE does not lock
the row that it misses, and a lock that is taken afterwards would come out of order.
Rows that the transaction has locked when it read them are not locked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from optilock.conditions.condition import parameter
from optilock.conditions.write import Shape, Write
from optilock.dialects.postgresql.rows import BRIEFLY, PLAIN, SetForm
from optilock.dialects.rows import execute_counted

#: Of more rows the statement for many is cheaper.
MOST = 8

#: The same of statements that raise.
MOST_THAT_RAISE = 3

_KEYS = "optilock_keys"
_FORM = "few rows"

#: A statement and its parameters.
_Call = tuple[str, Mapping[str, Any]]


class _Lock:
    """The statement that locks rows in the order of their keys."""

    def __init__(self, shape: Shape, dialect: sa.Dialect) -> None:
        (key,) = shape.keys
        self._parameter = key.parameter
        found = key.column == sa.any_(sa.bindparam(_KEYS, type_=sa.ARRAY(key.column.type)))
        waits = (one.clause(parameter) for one in BRIEFLY if one in shape.conditions)
        query: sa.Select[Any] = (
            sa.select(sa.literal_column("1"))
            .select_from(shape.table)
            .where(found, *waits)
            .order_by(key.column)
            .with_for_update(of=shape.table, key_share=not shape.deletes)
        )
        self._text = str(query.compile(dialect=dialect))

    def of(self, writes: list[Write]) -> _Call:
        return self._text, {_KEYS: [write.params[self._parameter] for write in writes]}


class FewRows:
    """The form for a few rows of one shape."""

    def __init__(self, shape: Shape, dialect: sa.Dialect, many: SetForm, *, locked: bool) -> None:
        self._statement, self._many = shape.statement, many
        self._lock = None if locked else _Lock(shape, dialect)

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""
        if "schema_translate_map" in connection.get_execution_options():
            return self._many.send(connection, writes)  # the tables have other names
        lock = () if self._lock is None else (self._lock.of(writes),)
        rows = [write.params for write in writes]
        counts = execute_counted(connection, self._statement, rows, partial(_together, lock))
        return [write for write, count in zip(writes, counts, strict=True) if not count]


def one_by_one(writes: list[Write], *, locked: bool) -> list[list[Write]]:
    """The rows, each for a statement of its own that raises if it misses, or all for one.

    A flush writes them in the order of their keys. Where the database has another order of such
    keys, those that are not ``locked`` already go in the one statement, which has that order.
    """
    if len(writes) > MOST_THAT_RAISE or any(write.shape.demanded not in PLAIN for write in writes):
        return [writes]
    if not locked and not all(_has_plain_key(write.shape) for write in writes):
        return [writes]
    return [[write] for write in writes]


def few_rows(
    writes: list[Write], dialect: sa.Dialect, many: SetForm, *, locked: bool
) -> FewRows | None:
    """Return the form, or ``None`` if psycopg cannot send these rows so."""
    shape = writes[0].shape
    if len(writes) > MOST or dialect.driver != "psycopg":
        return None
    if any(write.shape is not shape for write in writes):
        return None
    place = _FORM, locked
    if place not in shape.forms:
        plain = has_pipelines() and (locked or _has_plain_key(shape))
        shape.forms[place] = FewRows(shape, dialect, many, locked=locked) if plain else None
    form: FewRows | None = shape.forms[place]
    return form


def _has_plain_key(shape: Shape) -> bool:
    return len(shape.keys) == 1 and _is_plain(shape.keys[0].column.type)


def _is_plain(kind: TypeEngine[Any]) -> bool:
    """Return whether psycopg sends a list of such keys unchanged."""
    if isinstance(kind, sa.types.Uuid):
        return bool(kind.as_uuid)
    return isinstance(kind, (sa.types.Integer, sa.types.Date))


@cache
def has_pipelines() -> bool:
    supported: bool = import_module("psycopg").Pipeline.is_supported()
    return supported


# -- how psycopg sends them ------------------------------------------------------------------------


def _together(
    first: tuple[_Call, ...],
    cursor: Any,
    statement: str,
    rows: Sequence[Mapping[str, Any]],
    context: Any,
) -> list[int]:
    calls = [*first, *((statement, row) for row in rows)]
    driver = context.root_connection.connection.driver_connection
    sent = _Sent()
    if context.dialect.is_async:
        from sqlalchemy.util.concurrency import await_only

        await_only(_send_async(driver, calls, sent))
    else:
        _send(driver, calls, sent)
    return sent.counts()[len(first) :]


class _Sent:
    """The cursors of a pipeline, which have their counts once it is over.

    An error that leaves a pipeline is logged beside those that follow from it. So the first one is
    kept, inside of the pipeline as well as around it.
    """

    def __init__(self) -> None:
        self.cursors: list[Any] = []
        self._failed: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self._failed = self._failed or error
        return isinstance(error, Exception)

    def counts(self) -> list[int]:
        """Raises the error, if there was one."""
        if self._failed is not None:
            raise self._failed
        return [cursor.rowcount for cursor in self.cursors]


def _send(driver: Any, calls: Sequence[_Call], sent: _Sent) -> None:
    with sent, driver.pipeline(), sent:
        for call in calls:
            sent.cursors.append(driver.cursor().execute(*call, prepare=True))


async def _send_async(driver: Any, calls: Sequence[_Call], sent: _Sent) -> None:
    """The same words with await."""
    with sent:
        async with driver.pipeline():
            with sent:
                for call in calls:
                    sent.cursors.append(await driver.cursor().execute(*call, prepare=True))
