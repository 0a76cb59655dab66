"""Which way goes a statement of the unit of work: held, sent at once, looked at first, left out?

SQLAlchemy sends the rows of a flush one statement after the other. A row with a version is held
until something else asks the database, or sent by itself where its order matters; whatever knows
no version goes its way, but for the rows that missed already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from optilock.conditions.write import Shape, Write
from optilock.guard.answers import Accepted, Counted, Nothing, Unmoved
from optilock.guard.apart import look_at_other_tables
from optilock.guard.counting import require_row_counts
from optilock.guard.dependents import without_missed
from optilock.guard.ignored import only_ignored, touched, write_ignored
from optilock.guard.links import delete_links, judge_links
from optilock.guard.misses import miss, missed_again, without_version
from optilock.guard.onupdate import fill_in
from optilock.guard.shapes import shape_for
from optilock.guard.still import unmoved
from optilock.guard.values import judge_values, write_one
from optilock.mapping.compared import any_compared

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["links", "unguarded", "written"]

Native = Callable[..., Any]


def written(
    flush: Flush, connection: Connection, native: Native, statement: Any, params: Any, options: Any
) -> Any:
    """The answer for an UPDATE or DELETE that the unit of work sends for its rows."""
    uow = flush.uow
    if uow is None or not params:
        return native(statement, params, **options)
    many = isinstance(params, list)
    shape = shape_for(uow, connection.dialect, statement, params[0] if many else params)
    if shape is None:
        return unguarded(flush, connection, native, statement, params, options)
    if not connection.dialect.supports_sane_rowcount:
        require_row_counts(connection.dialect)
    if many:
        return _many(flush, connection, shape, params)
    write = Write(shape, params)
    if params.get(shape.token_parameter) is None:
        without_version(flush, connection, write)
        return Accepted(shape, params)
    if flush.known.still:
        write = unmoved(flush, write)
    if shape.special:
        answer = _special(flush, connection, native, statement, write, options)
        if answer is not None:
            return answer
    if (flush.missed or flush.skipped) and flush.is_missed(write):
        missed_again(flush, write)
        return Accepted(shape, write.params)
    if shape.alone or len(uow.states) == 1:
        if flush.waiting:
            flush.drain(connection)
        flush.known.sent.append(write)
        result = native(shape.statement, write.params, **options)
        if result.rowcount == 0:
            miss(flush, connection, [write], sent=1)
            return Unmoved(result, shape)
        return result
    return flush.hold(connection, write)


def _special(
    flush: Flush,
    connection: Connection,
    native: Native,
    statement: Any,
    write: Write,
    options: Any,
) -> Any:
    """The answer where the version is not all that counts; ``None``: write it as any other."""
    shape, params = write
    if flush.find(shape.mapper, shape.identity_of(params)) is None:  # of an unwatched session
        flush.drain(connection)
        return native(statement, params, **options)
    if shape.ignored_only and not touched(flush, write):
        return write_ignored(flush, connection, native, write, options)
    if shape.perhaps_ignored and only_ignored(flush, write):
        return Accepted(shape, {**params, shape.token.column.key: params[shape.token.parameter]})
    if shape.compares:
        answer = _compared(flush, connection, native, statement, params, options)
        if answer is not None:
            flush.known.sent.append(write)  # a rollback takes it back
        return answer
    return None


def _many(flush: Flush, connection: Connection, shape: Shape, rows: list[Any]) -> Accepted:
    """DELETEs, and the UPDATEs of post_update: a list of rows in one call."""
    flush.drain(connection)
    if shape.compares:
        judge_values(flush, connection, shape.statement, rows)
    writes = []
    for row in rows:
        write = Write(shape, row)
        if flush.known.still:
            write = unmoved(flush, write)
        if write.params.get(shape.token_parameter) is None:
            without_version(flush, connection, write)
        elif flush.is_missed(write):
            missed_again(flush, write)
        else:
            writes.append(write)
    if not shape.deletes:
        for write in writes:
            if shape.prefetch:
                fill_in(write, connection)
    flush.send(connection, writes)
    return Accepted(shape, *rows)


def unguarded(
    flush: Flush, connection: Connection, native: Native, statement: Any, params: Any, options: Any
) -> Any:
    """A statement without a token: tables of a row that missed are not written."""
    flush.drain(connection)
    look_at_other_tables(flush, statement.table)
    if any_compared() and params:
        answer = _compared(flush, connection, native, statement, params, options)
        if answer is not None:
            return answer
    if not (flush.misses or flush.skipped) or not params:
        return native(statement, params, **options)
    rows = params if isinstance(params, list) else [params]
    kept = without_missed(flush, statement, rows)
    if len(kept) == len(rows):
        return native(statement, params, **options)
    if not kept:
        return Nothing(rows)
    result = native(statement, kept, **options)
    return Counted(result, result.rowcount + len(rows) - len(kept), rows)


def links(
    flush: Flush, connection: Connection, native: Native, statement: Any, rows: Any, options: Any
) -> Any:
    """Link rows that are taken away: not those of a row that is gone, and some may be gone."""
    if flush.skipped:
        result = unguarded(flush, connection, native, statement, rows, options)
    else:
        flush.drain(connection)
        if options or flush.uow is None:
            return native(statement, rows, **options)
        result = delete_links(flush, connection, native, statement, rows)
    if options or not rows or flush.uow is None:
        return result
    return judge_links(flush, statement, rows, result)


def _compared(
    flush: Flush, connection: Connection, native: Native, statement: Any, params: Any, options: Any
) -> Any:
    """Rows with ``CompareValues``: written with their values, or looked at before (None)."""
    answer = write_one(flush, connection, native, statement, params, options)
    if answer is None:
        judge_values(flush, connection, statement, params)
    return answer
