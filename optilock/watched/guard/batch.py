"""Rows of a flush are held, sent together, and remembered where they missed.

An UPDATE of a versioned row is kept and answered with a small result; any other statement first
sends what is held, so that whoever asks the database sees what was written. Of rows that were not
found as they were read, our side is taken now, and theirs is read. Nothing is raised here:
SQLAlchemy goes on as if all went well, and nothing more is sent for such a row; the conflict is
settled (:mod:`optilock.watched.guard.settle`), or raised by ``flush()`` afterwards, with the
transaction still alive.
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper

from optilock.conditions.condition import explained
from optilock.conditions.write import Lost, Write
from optilock.mapped import facts
from optilock.mapping.moves import untouched
from optilock.watched.guard.commuting import add_to_stored, send_adding, take_sums_as_stored
from optilock.watched.guard.records import Flush, Short
from optilock.watched.guard.settle import restore_gone, settle_children
from optilock.watched.rows.entries import Missed, attempt_of, not_written
from optilock.watched.rows.unknown_versions import never_read, never_seen, no_version
from optilock.watched.writes.answers import Accepted, fill_in
from optilock.watched.writes.send import look_again, send, send_again


def hold(flush: Flush, connection: Connection, write: Write) -> Accepted:
    """Keep a row until the connection is asked something else."""
    shape, params = write
    held = _held(flush, connection, shape.group)
    keys = shape.keys
    key = params[keys[0].parameter] if len(keys) == 1 else shape.key_of(params)
    if key in held:
        drain(flush, connection)  # post_update writes the same row a second time
        held = _held(flush, connection, shape.group)
    if shape.prefetch:
        fill_in(write, connection)
    held[key] = write
    answer = flush.answers.get(shape)
    if answer is None:
        answer = flush.answers[shape] = Accepted(shape, params)
    answer.context.compiled_parameters = (params,)  # SQLAlchemy asks before it sends the next row
    return answer


def _held(flush: Flush, connection: Connection, together: object) -> dict[object, Write]:
    """The rows that are kept back to be sent together, by key."""
    by_statement = flush.waiting.get(connection)
    if by_statement is None:
        by_statement = flush.waiting[connection] = {}
        flush.listen(flush)
    held = by_statement.get(together)
    if held is None:
        held = by_statement[together] = {}
    return held


def drain(flush: Flush, connection: Connection) -> None:
    """Send the rows kept back for ``connection``, one statement a table."""
    held = flush.waiting.pop(connection, None)
    if not held:
        return
    together = [list(writes.values()) for writes in held.values()]
    for writes in together:  # all of them first: an error may end the transaction
        flush.known.sent.extend(writes)
    for writes in together:
        _send(flush, connection, writes)


def drain_all(flush: Flush) -> None:
    for connection in tuple(flush.waiting):
        drain(flush, connection)


def send_now(flush: Flush, connection: Connection, writes: list[Write]) -> None:
    """Send rows of one table at once."""
    if writes:
        flush.known.sent.extend(writes)
        _send(flush, connection, writes)


def _send(flush: Flush, connection: Connection, writes: list[Write]) -> None:
    if flush.adding is not None:
        missed = send_adding(flush, connection, writes)
    else:
        missed = send(connection, writes, locked=flush.known.has_locked(writes))
    if missed:
        missed_of(flush, connection, missed, sent=len(writes))


def missed_of(flush: Flush, connection: Connection, missed: list[Write], *, sent: int) -> None:
    """Of the ``sent`` rows these were not written: look at them, and write those that may be."""
    lost = read_lost(flush, connection, missed)
    if flush.adding is not None:
        lost = add_to_stored(flush, connection, lost)
    miss(flush, connection, send_again(connection, lost), sent=sent)


def read_lost(flush: Flush, connection: Connection, writes: list[Write]) -> list[Lost]:
    """What is stored of rows that were not found, locked; nothing is noted yet."""
    by_mapper: dict[Mapper[object], list[Write]] = {}
    for write in writes:
        by_mapper.setdefault(flush.state_of(write).mapper, []).append(write)
    demands = flush.known.demands
    looks = (look_again(demands, connection, mapper, some) for mapper, some in by_mapper.items())
    found = {id(lost.write.params): lost for some in looks for lost in some}
    return [found[id(write.params)] for write in writes]


def miss(flush: Flush, connection: Connection, lost: list[Lost], *, sent: int) -> None:
    """Note that these, of the ``sent`` that went together, were not written."""
    if not lost:
        return
    if flush.short is None:
        shape = lost[0].write.shape
        flush.short = Short(shape.table, shape.deletes, sent, len(lost))
    missed = []
    for row in lost:
        one = _missed(flush, connection, row.write)
        one.stored = row.stored
        one.problem = not_written(one) if row.stands else explained(row.failed, one.entry)
        missed.append(one)
    if flush.uow is not None and len(flush.uow.states) > 1:
        restore_gone(flush, missed)
        settle_children(flush, missed)


def missed_again(flush: Flush, write: Write) -> None:
    """The second UPDATE of a row (post_update) is not sent, and belongs to our side as well."""
    state = flush.state_of(write)
    missed = flush.missed_states.get(state)
    if missed is None or missed.attempt.action != "update":
        return
    missed.expressions = {**missed.expressions, **write.shape.expressions}
    missed.__dict__.pop("entry", None)
    missed.attempt = attempt_of(
        state,
        flush.action_on(state),
        missed.attempt.original.get(facts(state.mapper).token),
        expressions=missed.expressions,
        computed=write.shape.prefetch,
    )


def without_version(flush: Flush, connection: Connection, write: Write) -> None:
    """A row whose version is NULL, or was never read, is left out; ``flush()`` says so."""
    reason = never_seen if never_read(flush.state_of(write)) else no_version
    missed = _missed(flush, connection, write)
    missed.problem = reason(write.shape.mapper, write.key())


def _missed(flush: Flush, connection: Connection, write: Write) -> Missed:
    state = flush.state_of(write)
    shape, params = write
    untouched(state, shape.touches)
    if flush.overtaken:
        take_sums_as_stored(flush, state)
    attempt = attempt_of(
        state,
        flush.action_on(state),
        params.get(shape.token.parameter),
        computed=shape.prefetch,
    )
    missed = Missed(state, state.obj(), connection, attempt)
    missed.touched = shape.ignored_only and facts(state.mapper).token in state.committed_state
    flush.add_miss(missed)
    flush.missed.add((shape.table, write.key()))
    return missed
