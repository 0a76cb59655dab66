"""Rows were not found as they were read: our side is taken now, theirs is read.

Nothing is raised here. SQLAlchemy goes on as if all went well, and nothing more is sent for the
row; the conflict is settled, or raised, when the flush is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper

from optilock.conditions.write import Write
from optilock.guard.children import settle_children
from optilock.guard.missed import Missed, not_written
from optilock.guard.restore import restore_gone
from optilock.guard.unversioned import never_seen, no_version
from optilock.guard.words import Short
from optilock.mapping.facts import facts
from optilock.mapping.makers import untouched
from optilock.rows.seen import never_read
from optilock.rows.sides import attempt_of, read_stored

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["miss", "missed_again", "without_version"]


def miss(flush: Flush, connection: Connection, writes: list[Write], *, sent: int) -> None:
    """Note that ``writes``, of the ``sent`` that went together, did not find their rows."""
    if not writes:
        return
    if flush.short is None:
        flush.short = Short(writes[0].shape, sent, len(writes))
    missed = [_missed(flush, connection, write) for write in writes]
    by_mapper: dict[Mapper[object], list[Missed]] = {}
    for one in missed:
        by_mapper.setdefault(one.state.mapper, []).append(one)
    for mapper, some in by_mapper.items():
        try:
            stored = read_stored(connection, mapper, [m.attempt.identity for m in some])
        except DBAPIError:  # such as a lock timeout: nobody knows whether the row is there
            unknown = set(some)
            flush.misses = [one for one in flush.misses if one not in unknown]
            raise
        for one in some:
            one.stored = stored.get(one.attempt.identity)
            one.problem = one.problem or not_written(one)
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
    attempt = attempt_of(
        state,
        flush.action_on(state),
        params.get(shape.token.parameter),
        computed=shape.prefetch,
    )
    missed = Missed(state, state.obj(), connection, attempt, params)
    missed.touched = shape.ignored_only and facts(state.mapper).token in state.committed_state
    flush.add_miss(missed)
    flush.skip(write)
    return missed
