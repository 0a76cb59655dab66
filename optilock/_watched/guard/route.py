"""Routes of the unit of work's statements: held, sent at once, checked first, or omitted.

SQLAlchemy sends the rows of a flush one statement after the other. The guard keeps a row with a
version back until another statement needs the database, or sends it individually where its order
matters. A statement without a version passes through, without the rows that missed already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from optilock._mapped import facts
from optilock._mapping.original_values import changes_only
from optilock._watched.guard.batch import (
    add_second_update,
    defer,
    refuse_without_version,
    send_deferred,
    send_now,
    settle_missed,
)
from optilock._watched.guard.compared_values import judge_ahead, judge_objects
from optilock._watched.guard.dependents import (
    SkippedRows,
    delete_links,
    drop_missed_rows,
    judge_links,
)
from optilock._watched.guard.no_bump import with_same_version
from optilock._watched.guard.records import Flush
from optilock._watched.guard.sums import (
    is_commuting_write,
    name_what_was_read,
)
from optilock._watched.session.record import is_strict
from optilock._watched.statements.refusals import strict_mode_error
from optilock._watched.writes.answers import (
    AcceptedResult,
    CountedResult,
    UnmovedResult,
    fill_in,
)
from optilock._watched.writes.send import require_row_counts
from optilock._watched.writes.shapes import compared_columns, shape_for
from optilock.conditions.demands import FREE, Demands
from optilock.conditions.write import Shape, Write, write_of
from optilock.dialects import database_of
from optilock.dialects.rows import judge

Native = Callable[..., Any]


def route_statement(
    flush: Flush, connection: Connection, native: Native, statement: Any, params: Any, options: Any
) -> Any:
    """Return the answer for an UPDATE or DELETE that the unit of work sends for its rows."""
    uow = flush.uow
    if uow is None or not params:
        return native(statement, params, **options)
    many = isinstance(params, list)
    shape = shape_for(uow, connection.dialect, statement, params[0] if many else params)
    if shape is None:
        return pass_through(flush, connection, native, statement, params, options)
    if not connection.dialect.supports_sane_rowcount:
        require_row_counts(connection.dialect)
    if many:
        return _route_rows(flush, connection, shape, params)
    write = write_of((shape, params))
    if params.get(shape.token.parameter) is None:
        refuse_without_version(flush, connection, write)
        return AcceptedResult(shape, params)
    is_only, record = len(uow.states) == 1, flush.record
    write = _with_conditions(flush, write)
    if (
        record.owner is not None
        and (not is_only or record.holds_locks or record.promises or record.sent)
        and flush.hurries
        and not write.shape.special
    ):
        write = _hurried(flush, connection, write)  # others may wait for what the unit has locked
    shape = write.shape
    if shape.special:
        answer = _special(flush, connection, native, write, options)
        if answer is not None:
            return answer
    if (flush.missed or flush.skipped) and flush.is_missed(write):
        add_second_update(flush, write)
        return AcceptedResult(shape, write.params)
    if shape.sent_individually or not shape.exact or (is_only and not flush.last):
        return _send_individually(flush, connection, native, write, options)
    return defer(flush, connection, write)


def _with_conditions(flush: Flush, write: Write) -> Write:
    """Return the write with what ``no_bump`` blocks and the session's demands add."""
    record = flush.record
    if record.no_bump_blocks:
        write = with_same_version(flush, write)
    demands = record.demands
    if demands is not None and write.shape.mapper.__dict__.get(FREE) is not demands:
        write = _demanded(flush, demands, write)
    return write


def _send_individually(
    flush: Flush, connection: Connection, native: Native, write: Write, options: Any
) -> Any:
    """Send one row at once, after the rows that are held."""
    if flush.waiting:
        send_deferred(flush, connection)
    flush.record.sent.append(write)
    shape, result = write.shape, None
    if shape.exact or not judge(database_of(connection.dialect), connection, [write])[1]:
        statement = shape.statement if shape.exact else shape.judged
        result = native(statement, write.params, **options)
        if result.rowcount:
            return result

    def again(one: Write) -> Any:
        return native(one.shape.judged, one.params, **options)

    return _not_found(flush, connection, write, result, again)


def _demanded(flush: Flush, demands: Demands, write: Write) -> Write:
    """Add what the session demands of the object's own class: a hierarchy shares statements."""
    shape, params = write
    if flush.may_replace and not shape.deletes and demands.concerns_class(shape.mapper):
        new = flush.find(shape.mapper, shape.identity_of(params))
        if new is not None and new.key is None:
            return demands.with_demands_of_both(write, new.mapper)
    cached = demands.cached_with_demands(write)
    if cached:
        return cached
    if not demands.concerns_class(shape.mapper):
        return write
    if facts(shape.mapper).is_alone:
        return demands.with_shared_demands(write)
    state = flush.find(shape.mapper, shape.identity_of(params))
    return write if state is None else demands.with_demands(write, state.mapper)


def _hurried(flush: Flush, connection: Connection, write: Write) -> Write:
    """Return the write with a brief wait for its lock, if the unit has not locked the row."""
    record = flush.record
    if record.has_locked([write]):
        return write
    more = database_of(connection.dialect).waits.brief_waits
    if not more:
        return write
    record.note_brief_waits()
    return write_of((write.shape.with_conditions(more), write.params))


def _not_found(
    flush: Flush, connection: Connection, write: Write, result: Any, again: Callable[[Write], Any]
) -> Any:
    """Write the row of a single statement again, if its conditions are true again by now."""

    def send(connection: Connection, writes: list[Write]) -> list[Write]:
        nonlocal result
        result = again(writes[0])
        return [] if result.rowcount else writes

    if not settle_missed(flush, connection, [write], sent=1, send=send):
        return result
    return AcceptedResult(*write) if result is None else UnmovedResult(result, write.shape)


def _special(
    flush: Flush, connection: Connection, native: Native, write: Write, options: Any
) -> Any:
    """Return the answer for a row with rules of its own; ``None``: write it like any other."""
    shape, params = write
    if flush.find(shape.mapper, shape.identity_of(params)) is None:  # of an unwatched session
        send_deferred(flush, connection)
        return native(shape.statement, params, **options)
    if shape.commuting and is_commuting_write(flush, write) and not shape.sent_individually:
        return defer(flush, connection, write)
    if (shape.ignored_only or shape.perhaps_ignored) and _only_ignored(flush, write):
        if shape.ignored_only:
            return _write_ignored(flush, connection, native, write)
        if shape.demanded:  # of the row's other tables
            judge_objects(flush, [flush.state_of(write)], deleting=False)
        return AcceptedResult(
            shape, {**params, shape.token.column.key: params[shape.token.parameter]}
        )
    if shape.compares:
        judge_ahead(flush, shape.statement, params)
    return None


def _route_rows(
    flush: Flush, connection: Connection, shape: Shape, rows: list[Any]
) -> AcceptedResult:
    """Send the rows of one call: DELETEs, and the UPDATEs of post_update."""
    send_deferred(flush, connection)
    if shape.compares:
        judge_ahead(flush, shape.statement, rows)
    writes = []
    for row in rows:
        write = write_of((shape, row))
        if flush.overtaken:
            name_what_was_read(flush, write)
        if row.get(shape.token.parameter) is None:
            refuse_without_version(flush, connection, write)
        elif flush.is_missed(write):
            add_second_update(flush, write)
        else:
            writes.append(_with_conditions(flush, write))
    if shape.prefetch and not shape.deletes:
        for write in writes:
            fill_in(write, connection)
    send_now(flush, connection, writes)
    return AcceptedResult(shape, *rows)


def pass_through(
    flush: Flush, connection: Connection, native: Native, statement: Any, params: Any, options: Any
) -> Any:
    """Send a statement without a token, without rows that belong to one that missed."""
    flush.record.note_other_statement(writes=True)
    if is_strict(flush.session):
        refuse_forgotten_statement(flush, statement, params)
    send_deferred(flush, connection)
    judge_ahead(flush, statement, params)
    if not (flush.misses or flush.skipped) or not params:
        return native(statement, params, **options)
    return _send_others(flush, native, statement, params, options)


def _send_others(flush: Flush, native: Native, statement: Any, params: Any, options: Any) -> Any:
    """Send the rows that do not belong to one that missed."""
    rows = params if isinstance(params, list) else [params]
    kept = drop_missed_rows(flush, statement, rows)
    if len(kept) == len(rows):
        return native(statement, params, **options)
    if not kept:
        return AcceptedResult(None, *rows)
    result = native(statement, kept, **options)
    return CountedResult(result, result.rowcount + len(rows) - len(kept), rows)


def route_link_rows(
    flush: Flush, connection: Connection, native: Native, statement: Any, rows: Any, options: Any
) -> Any:
    """Send the removal of link rows, without those of a row that is gone."""
    if flush.skipped:
        result = pass_through(flush, connection, native, statement, rows, options)
    else:
        send_deferred(flush, connection)
        if options or flush.uow is None:
            return native(statement, rows, **options)
        result = delete_links(flush, connection, native, statement, rows)
    if options or not rows or flush.uow is None:
        return result
    return judge_links(flush, connection, statement, rows, result)


# -- only ignored columns change: the version is neither checked nor moved -------------------------


def _write_ignored(
    flush: Flush, connection: Connection, native: Native, write: Write
) -> UnmovedResult:
    """Write the row in any version; a row that is gone has missed."""
    send_deferred(flush, connection)
    shape, params = write
    token, bare = shape.token, shape.unversioned
    kept = {k: v for k, v in params.items() if k not in (token.parameter, token.column.key)}
    result = native(bare.statement, kept)
    if not result.rowcount:
        result = _not_found(
            flush, connection, Write(bare, params), result, lambda _: native(bare.statement, kept)
        )
    return UnmovedResult(result, shape)


def _only_ignored(flush: Flush, write: Write) -> bool:
    """Return whether nothing else of the object has changed, in any of its tables.

    A touched version has. A new object replaces the whole row of a deleted one, which was to be
    deleted in its version.
    """
    state = flush.state_of(write)
    known = facts(state.mapper)
    is_touched = state.key is None or known.token in state.committed_state
    return not is_touched and changes_only(state, known.ignored)


def refuse_forgotten_statement(flush: Flush, statement: Any, params: Any) -> None:
    """Refuse an unexpected statement of the unit of work, in a strict session.

    Raises:
        ConfigurationError: it changes a row of a class without a version. It is not sent, and the
            flush is rolled back.
    """
    assert flush.uow is not None
    states = [
        state
        for mapper, some in flush.uow.mappers.items()
        if statement.table in mapper.tables and facts(mapper).forgotten
        for state in some
        if state.key is not None
    ]
    if not states:
        return
    of_rows = SkippedRows(statement.table, compared_columns(statement) or {})
    of_rows.take((), frozenset(states))
    if any(row in of_rows for row in (params if isinstance(params, list) else [params])):
        raise strict_mode_error(
            states[0].mapper, then="It was not sent, and the flush is rolled back."
        )
