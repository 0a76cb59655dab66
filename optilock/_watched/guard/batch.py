"""Rows of a flush are deferred, sent together, and recorded if they missed.

An UPDATE of a versioned row is kept and answered with a small result. Any other statement first
sends the deferred rows, so that every query of the program sees them. At the end of the flush they
are sent, or go with COMMIT (:func:`send_with_commit`). For rows that were not found as they were
read, our values are recorded now, and the stored values are read.

Nothing is raised here: SQLAlchemy goes on as after a success, and nothing more is sent for such a
row. The conflict is settled (:mod:`~optilock._watched.guard.settlement`), or ``flush()`` raises it
afterwards, with the transaction still alive.

The last writes of a transaction go with COMMIT, if nothing comes between them. A unit that wants
this (:mod:`optilock.unit.round_trips`) has put an
:class:`~optilock._watched.session.record.Ending` on the session's record, and marks the last flush,
which runs inside of ``session.commit()``. The guard then defers a single row, too, and at the end
of the flush hands all deferred rows to the Ending. If the flush has sent anything before, or has
conflicts to settle, it is a usual flush. The Ending is
one of PostgreSQL (``dialects/postgresql/last_writes.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper

from optilock._mapped import facts
from optilock._mapping.moves import undo_touch
from optilock._mapping.scopes import has_scopes
from optilock._undocumented.connections import has_commit_listeners
from optilock._undocumented.flushes import nested_transaction
from optilock._watched.guard.promises import (
    can_check_last,
    check_first,
    checks_of,
    hold_by_locks,
)
from optilock._watched.guard.records import Flush, ShortCount
from optilock._watched.guard.settlement import restore_gone, settle_children
from optilock._watched.guard.sums import (
    LastSum,
    add_to_stored,
    refused_sums,
    send_sums,
    take_sums_as_stored,
)
from optilock._watched.rows.entries import HiddenRows, Missed, attempt_of, error_if_not_written
from optilock._watched.rows.locked import order_of
from optilock._watched.rows.roots import foreign_keys_of
from optilock._watched.rows.unknown_versions import unknown_version_error
from optilock._watched.session.record import Ending
from optilock._watched.writes.answers import AcceptedResult, fill_in
from optilock._watched.writes.send import Send, read_missed, resend, send
from optilock.conditions.condition import first_explanation
from optilock.conditions.demands import FREE
from optilock.conditions.write import NO_CHECKS, Lost, Params, Shape, Write, places_of
from optilock.dialects import database_of


def defer(flush: Flush, connection: Connection, write: Write) -> AcceptedResult:
    """Keep a row until another statement is sent on the connection."""
    shape, params = write
    held = _held(flush, connection, shape.group)
    keys = shape.keys
    key = params[keys[0].parameter] if len(keys) == 1 else shape.key_of(params)
    if key in held:
        send_deferred(flush, connection)  # post_update writes the same row a second time
        held = _held(flush, connection, shape.group)
    if shape.prefetch:
        fill_in(write, connection)
    held[key] = write
    answer = flush.answers.get(shape)
    if answer is None:
        answer = flush.answers[shape] = AcceptedResult(shape, params)
    answer.context.compiled_parameters = (params,)  # SQLAlchemy asks before it sends the next row
    return answer


#: What writes of one statement are, the deferred ones of them by key, and the key of one.
Joined = tuple[Shape, dict[Any, Write], Callable[[Params], Any]]


def rows_to_join(
    flush: Flush, connection: Connection, params: Params, answer: object
) -> Joined | None:
    """Return the deferred rows that others may join by themselves; ``None``: each is routed.

    ``answer`` is that of a row: it was deferred as it is, and nothing is asked of each row.
    """
    if not isinstance(answer, AcceptedResult) or answer.shape is None:
        return None
    shape, record = answer.shape, flush.record
    if flush.answers.get(shape) is not answer:
        return None
    if answer.context.compiled_parameters[0] is not params or record.no_bump_blocks:
        return None
    if shape.special or shape.prefetch or shape.postfetch or flush.missed or flush.skipped:
        return None
    if record.demands is not None and shape.mapper.__dict__.get(FREE) is not record.demands:
        return None
    if record.locked and flush.hurries:  # a row that is locked already waits as any does
        return None
    key = itemgetter(*(one.parameter for one in shape.keys))
    return shape, flush.waiting[connection][shape.group], key


def _held(flush: Flush, connection: Connection, together: object) -> dict[object, Write]:
    """Return the deferred rows that are sent together, by key."""
    by_statement = flush.waiting.get(connection)
    if by_statement is None:
        by_statement = flush.waiting[connection] = {}
        flush.listen(flush)
    held = by_statement.get(together)
    if held is None:
        held = by_statement[together] = {}
    return held


def send_deferred(flush: Flush, connection: Connection) -> None:
    """Send the deferred rows of ``connection``, one statement per table."""
    held = flush.waiting.pop(connection, None)
    if not held:
        return
    together = [list(writes.values()) for writes in held.values()]
    if len(together) > 1:  # classes that are independent of each other have no order in a flush
        together.sort(key=lambda writes: order_of(writes[0].shape.mapper, ()))
    for writes in together:  # all of them first: an error may end the transaction
        flush.record.sent.extend(writes)
    for writes in together:
        _send(flush, connection, writes)


def send_all_deferred(flush: Flush) -> None:
    for connection in tuple(flush.waiting):
        send_deferred(flush, connection)


def send_now(flush: Flush, connection: Connection, writes: list[Write]) -> None:
    """Send rows of one table immediately."""
    if writes:
        flush.record.sent.extend(writes)
        _send(flush, connection, writes)


def _send(flush: Flush, connection: Connection, writes: list[Write]) -> None:
    if flush.adding is not None:
        missed = send_sums(flush, connection, writes)
    else:
        missed = send(connection, writes, locked=flush.has_locked(writes))
    if missed:
        settle_missed(flush, connection, missed, sent=len(writes))


def settle_missed(
    flush: Flush,
    connection: Connection,
    missed: list[Write],
    *,
    sent: int,
    send: Send = send,
) -> list[Lost]:
    """Read the missed rows, retry those whose conditions hold again, and record the rest.

    ``sent`` is the number of rows that were sent together, and ``send`` retries them.
    """
    lost = _read_lost(flush, connection, missed)
    if flush.adding is not None:
        lost = add_to_stored(flush, connection, lost, send)
    lost = resend(connection, lost, send)
    if lost:
        _record_miss(flush, connection, lost, sent=sent)
    return lost


def _read_lost(flush: Flush, connection: Connection, writes: list[Write]) -> list[Lost]:
    """Lock rows that were not found and return their stored values; nothing is recorded yet.

    A write that waits briefly limits the wait of this lock only if it has come to the row's lock.
    """
    by_mapper: dict[Mapper[object], list[Write]] = {}
    states = [flush.state_of(write) for write in writes]
    for state, write in zip(states, writes, strict=True):
        by_mapper.setdefault(state.mapper, []).append(write)
    record = flush.record
    looks = (
        read_missed(record.demands, connection, mapper, some, briefly=record.waits_briefly)
        for mapper, some in by_mapper.items()
    )
    found = {id(lost.write.params): lost for some in looks for lost in some}
    return [
        Lost(*found[id(write.params)][:3], state)
        for state, write in zip(states, writes, strict=True)
    ]


def _record_miss(flush: Flush, connection: Connection, lost: list[Lost], *, sent: int) -> None:
    """Record rows that were not written, of the ``sent`` ones that went together."""
    shape = lost[0].write.shape
    flush.note_short(ShortCount(shape.table, shape.deletes, sent, len(lost)))
    missed, hidden = [], HiddenRows(connection)
    for row in lost:
        one = _missed(flush, connection, row, hidden)
        if row.failed:
            one.problem = first_explanation(row.failed, one.entry)
        elif not one.gone:
            one.problem = error_if_not_written(one)
        missed.append(one)
    if flush.uow is not None and len(flush.uow.states) > 1:
        restore_gone(flush, missed)
        settle_children(flush, missed)


def add_second_update(flush: Flush, write: Write) -> None:
    """Add the second UPDATE of a missed row (post_update), which is not sent, to its record."""
    state = flush.state_of(write)
    missed = flush.missed_states.get(state)
    if missed is None or missed.attempt.action != "update":
        return
    missed.expressions = {**missed.expressions, **write.shape.expressions}
    missed.set_attempt(
        attempt_of(
            state,
            flush.action_on(state),
            missed.attempt.original.get(facts(state.mapper).token),
            expressions=missed.expressions,
            computed=write.shape.prefetch,
        )
    )


def refuse_without_version(flush: Flush, connection: Connection, write: Write) -> None:
    """Record a row whose version is NULL, or was never read; ``flush()`` raises the reason."""
    lost = Lost(write, None, state=flush.state_of(write))
    missed = _missed(flush, connection, lost, None)
    missed.problem = unknown_version_error(missed.state, write.key())


def _missed(flush: Flush, connection: Connection, lost: Lost, hidden: HiddenRows | None) -> Missed:
    (shape, params), state = lost.write, lost.state
    assert state is not None
    undo_touch(state, shape.touches)
    if flush.overtaken:
        take_sums_as_stored(flush, state)
    attempt = attempt_of(
        state,
        flush.action_on(state),
        params.get(shape.token.parameter),
        computed=shape.prefetch,
    )
    missed = Missed(state, state.obj(), connection, attempt, lost.stored, hidden)
    missed.touched = shape.ignored_only and attempt.known.token in state.committed_state
    flush.add_miss(missed)
    flush.missed.setdefault(shape.table, set()).add(shape.place_of(params))
    return missed


# -- the last writes of a transaction --------------------------------------------------------------


def may_go_with_commit(flush: Flush) -> bool:
    """Return whether the deferred rows of this flush may go with COMMIT."""
    record = flush.record
    return record.ending is not None and record.ending_now and len(record.connections) == 1


def send_with_commit(flush: Flush) -> bool:
    """Send the deferred rows with COMMIT; False if they are still to be sent, and committed."""
    if _send_with_commit(flush):
        return True
    if flush.record.promises:  # of rows that were to be checked in the same trip
        check_first(flush.session, places_of(flush.held()))
    return False


def _send_with_commit(flush: Flush) -> bool:
    ending = flush.record.ending
    if ending is None or not _only_commit_follows(flush):
        return False
    ((connection, held),) = flush.waiting.items()
    together = [list(writes.values()) for writes in held.values()]
    if not all(writes[0].shape.exact for writes in together):
        return False
    if has_commit_listeners(connection):  # they are called before it
        return False
    last: LastSum | None = None
    if flush.adding is not None and len(together) == 1 and len(together[0]) == 1:
        last = LastSum.of(flush, connection, together[0][0])
        if last is None:
            return False
    return _hand_over(flush, ending, connection, together, last)


def _hand_over(
    flush: Flush,
    ending: Ending,
    connection: Connection,
    together: list[list[Write]],
    last: LastSum | None,
) -> bool:
    record = flush.record
    record.begin_last_writes()
    locked = all(map(record.has_locked, together))
    before = len(record.sent)
    record.sent.extend(write for writes in together for write in writes)
    checks = checks_of(flush.session, record.sent[before:])
    if checks is None or (last is not None and checks is not NO_CHECKS):
        del record.sent[before:]
        return False
    held = flush.waiting.pop(connection)
    database = database_of(connection.dialect)
    if last is None:
        missed = ending.send(connection, together, database, locked=locked, checks=checks)
    else:
        with refused_sums(flush, together[0]):
            missed = ending.send(connection, together, database, last.alone)
    if locked and missed != []:  # of a trigger, perhaps: another transaction may have begun
        record.forget_locked()
    if missed is None:
        flush.waiting[connection] = held
        del record.sent[before:]
        return False
    if missed:
        settle_missed(flush, connection, missed, sent=len(record.sent) - before)
        return True
    if record.promises:
        record.promises.looked_at(record.promises)
    if last is not None:
        last.moves_on()
    return True


def _only_commit_follows(flush: Flush) -> bool:
    """Return whether the deferred rows are all that is left before COMMIT."""
    return (
        may_go_with_commit(flush)
        and len(flush.waiting) == 1
        and not (flush.misses or flush.skipped or flush.gone_links or flush.record.announced)
        # A listener of before_flush may make promises.
        and (hold_by_locks(flush.session) or can_check_last(flush.session))
        and flush.uow is not None
        and not any(map(has_scopes, flush.uow.mappers))
        # A sum may be written to a part that has another root by now.
        and not (flush.adding is not None and any(map(foreign_keys_of, flush.uow.mappers)))
        and nested_transaction(flush.session) is None
    )
