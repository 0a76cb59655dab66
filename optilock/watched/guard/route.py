"""Which way goes a statement of the unit of work: held, sent at once, looked at first, left out?

SQLAlchemy sends the rows of a flush one statement after the other. The guard keeps a row with a
version back until something else asks the database, or sends it by itself where its order matters;
whatever knows no version goes its way, but for the rows that missed already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper

from optilock.conditions.demands import FREE, Demands
from optilock.conditions.write import Shape, Write, write_of
from optilock.dialects import database_of
from optilock.dialects.rows import judge
from optilock.mapped import facts
from optilock.mapping.compared import any_compared, changed_names
from optilock.watched.guard.batch import (
    drain,
    hold,
    miss,
    missed_again,
    read_lost,
    send_now,
    without_version,
)
from optilock.watched.guard.commuting import (
    commutes,
    name_what_was_read,
    on_stored,
    refused_sums,
    written_on_stored,
)
from optilock.watched.guard.compares import judge_demanded, judge_objects, judge_values, write_one
from optilock.watched.guard.dependents import delete_links, judge_links, without_missed
from optilock.watched.guard.no_bump import unmoved
from optilock.watched.guard.records import Flush
from optilock.watched.guard.refusals import refuse_forgotten_statement
from optilock.watched.session.watched import is_strict
from optilock.watched.writes.answers import Accepted, Counted, Nothing, Unmoved, fill_in
from optilock.watched.writes.send import require_row_counts
from optilock.watched.writes.shapes import shape_for

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
    write = write_of((shape, params))
    if params.get(shape.token.parameter) is None:
        without_version(flush, connection, write)
        return Accepted(shape, params)
    known = flush.known
    if known.still:
        write = unmoved(flush, write)
    demands = known.demands
    if demands is not None and shape.mapper.__dict__.get(FREE) is not demands:
        write = demands.again(write) or _demanded(flush, demands, write)
        shape = write.shape
    alone = len(uow.states) == 1
    in_the_way = not alone or known.holds_locks or known.promises or known.sent
    if in_the_way and flush.hurries and not shape.special:
        write = _hurried(flush, connection, write)
        shape = write.shape
    if shape.special:
        answer = _special(flush, connection, native, statement, write, options)
        if answer is not None:
            return answer
    if (flush.missed or flush.skipped) and flush.is_missed(write):
        missed_again(flush, write)
        return Accepted(shape, write.params)
    if shape.alone or not shape.exact or (alone and not flush.last):
        if flush.waiting:
            drain(flush, connection)
        known.sent.append(write)
        result = None
        if shape.exact or not judge(database_of(connection.dialect), connection, [write])[1]:
            statement = shape.statement if shape.exact else shape.judged
            result = native(statement, write.params, **options)
            if result.rowcount:
                return result
        return _not_found(flush, connection, native, write, options, result)
    return hold(flush, connection, write)


def _demanded(flush: Flush, demands: Demands, write: Write) -> Write:
    """Under what the session demands of the object's own class: a hierarchy shares statements."""
    shape, params = write
    if not demands.concern(shape.mapper):
        return write
    if facts(shape.mapper).is_alone:
        return demands.alike(write)
    state = flush.find(shape.mapper, shape.identity_of(params))
    return write if state is None else demands.demanded(write, state.mapper)


def _hurried(flush: Flush, connection: Connection, write: Write) -> Write:
    """The same write, which does not wait for long: of a row that the unit has not locked."""
    known = flush.known
    if known.has_locked([write]):
        return write
    more = database_of(connection.dialect).brief_waits
    if not more:
        return write
    known.waits_briefly = True
    return write_of((write.shape.under(more), write.params))


def _not_found(
    flush: Flush, connection: Connection, native: Native, write: Write, options: Any, result: Any
) -> Any:
    """The row of a single statement was not written; it is, if its conditions are true again."""
    (lost,) = read_lost(flush, connection, [write])
    again = on_stored(flush, lost)
    if again is not None:
        with refused_sums(flush, [write]):
            result = native(again.write.shape.judged, again.write.params, **options)
        if result.rowcount:
            written_on_stored(flush, write, again.write)
            return result
    if lost.stands:
        result = native(write.shape.judged, write.params, **options)
        if result.rowcount:
            return result
    miss(flush, connection, [lost], sent=1)
    return Accepted(*write) if result is None else Unmoved(result, write.shape)


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
        drain(flush, connection)
        return native(statement, params, **options)
    if shape.commuting and commutes(flush, write) and not shape.alone:
        return hold(flush, connection, write)
    if shape.ignored_only and not _touched(flush, write):
        return _write_ignored(flush, connection, native, write, options)
    if shape.perhaps_ignored and _only_ignored(flush, write):
        if shape.demanded:  # of the row's other tables
            judge_objects(flush, [flush.state_of(write)], deleting=False)
        return Accepted(shape, {**params, shape.token.column.key: params[shape.token.parameter]})
    if shape.compares:
        answer = _compared(flush, connection, native, statement, params, options)
        if answer is not None:
            flush.known.sent.append(write)  # a rollback takes it back
        return answer
    return None


def _many(flush: Flush, connection: Connection, shape: Shape, rows: list[Any]) -> Accepted:
    """DELETEs, and the UPDATEs of post_update: a list of rows in one call."""
    drain(flush, connection)
    if shape.compares:
        judge_values(flush, connection, shape.statement, rows)
    writes, demands = [], flush.known.demands
    for row in rows:
        write = write_of((shape, row))
        if flush.overtaken:
            name_what_was_read(flush, write)
        if flush.known.still:
            write = unmoved(flush, write)
        if row.get(shape.token.parameter) is None:
            without_version(flush, connection, write)
        elif flush.is_missed(write):
            missed_again(flush, write)
        else:
            if demands is not None and shape.mapper.__dict__.get(FREE) is not demands:
                write = demands.again(write) or _demanded(flush, demands, write)
            writes.append(write)
    if not shape.deletes:
        for write in writes:
            if shape.prefetch:
                fill_in(write, connection)
    send_now(flush, connection, writes)
    return Accepted(shape, *rows)


def unguarded(
    flush: Flush, connection: Connection, native: Native, statement: Any, params: Any, options: Any
) -> Any:
    """A statement without a token: tables of a row that missed are not written."""
    flush.known.sent_more = True
    if is_strict(flush.session):
        refuse_forgotten_statement(flush, statement, params)
    drain(flush, connection)
    _look_at_other_tables(flush, statement.table)
    if flush.known.demands is not None and flush.known.demands.may_concern(statement.table):
        judge_demanded(flush, statement.table)
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
        drain(flush, connection)
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


# -- only ignored columns change: the version is neither checked nor moved ------------------------


def _write_ignored(
    flush: Flush, connection: Connection, native: Callable[..., Any], write: Write, options: Any
) -> Unmoved:
    """Write the row whatever its version is; a row that is gone has missed."""
    drain(flush, connection)
    shape, params = write
    token, bare = shape.token, shape.unversioned
    kept = {k: v for k, v in params.items() if k not in (token.parameter, token.column.key)}
    result = native(bare.statement, kept)
    if not result.rowcount:
        (lost,) = read_lost(flush, connection, [Write(bare, params)])
        if lost.stands:
            result = native(bare.statement, kept)
        if not result.rowcount:
            miss(flush, connection, [lost], sent=1)
    return Unmoved(result, shape)


def _only_ignored(flush: Flush, write: Write) -> bool:
    """Has nothing else of the object changed, in any of its tables?"""
    state = flush.state_of(write)
    ignored = facts(state.mapper).ignored
    columns = state.mapper.column_attrs
    return all(set(columns[name].columns) <= ignored for name in changed_names(state))


def _touched(flush: Flush, write: Write) -> bool:
    """Is the version to move, whatever else changes (``touch``)?"""
    state = flush.state_of(write)
    return facts(state.mapper).token in state.committed_state


# -- a version that is not in the table which is written first ------------------------------------


def _look_at_other_tables(flush: Flush, table: Any) -> None:
    """Judge the rows whose base table is ``table`` and whose version is elsewhere, once a flush.

    The base table of such a row would be written before its version is checked (joined tables).
    """
    assert flush.uow is not None
    if table in flush.looked_apart:
        return
    flush.looked_apart |= {table}
    states = [
        state
        for mapper, some in flush.uow.mappers.items()
        if _version_apart(mapper) and table is mapper.base_mapper.local_table
        for state in some
        if state.modified and not flush.is_delete(state)
    ]
    judge_objects(flush, states, deleting=False)


def _version_apart(mapper: Mapper[Any]) -> bool:
    token = mapper.version_id_col
    return token is not None and token.table is not mapper.base_mapper.local_table
