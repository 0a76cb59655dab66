"""The meaning of an error at the end of a unit.

After an error inside COMMIT the unit is stored, is not stored, or its outcome is unknown. A call in
a transaction that is over is refused by SQLAlchemy, whose error does not show what has ended it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError

from optilock._watched.session.record import record_of
from optilock.dialects.transient import commit_outcome_unknown
from optilock.errors import (
    CommitOutcomeUnknown,
    ConcurrencyError,
    ConfigurationError,
    OptilockError,
    TransactionEnded,
)
from optilock.exactly_once.units import note_of


def explain_commit(own: Any, error: BaseException) -> bool:
    """Raise or note that the outcome of the COMMIT of a unit is unknown, if it is.

    Returns whether the unit, which has ``exactly_once=``, was found stored. Its connection is back
    in the pool.
    """
    ending, token = record_of(own.session).ending, own.token
    with_writes = ending is not None and ending.unanswered and isinstance(error, Exception)
    if not with_writes:
        if own.options.read_only:
            return False
        if not isinstance(error, Exception):
            error.add_note(_INTERRUPTED if token is None else note_of(token.token))
            return False
        if not commit_outcome_unknown(error):
            several = len(own.connections) > 1 and not own.session.twophase
            if several and _from_database(error):
                raise CommitOutcomeUnknown(_HALF) from error
            return False
    lost = _LOST_WITH_WRITES if with_writes else _LOST
    if token is None:
        also = _IN_ONE_TRIP if with_writes else ""
        raise CommitOutcomeUnknown(f"{lost}{also}{_UNKNOWN}") from error
    token.find_out(lost, error)
    return True


def refusal_of(own: Any, error: BaseException) -> tuple[OptilockError, BaseException] | None:
    """Return why SQLAlchemy refused a call in the unit's transaction, and the cause, if known."""
    if isinstance(error, TransactionEnded):
        return None
    lost = any(one.invalidated for one in own.connections)
    if isinstance(error, PendingRollbackError) and lost:
        return OptilockError(_STATEMENT_INTERRUPTED), error
    if not own.session.in_transaction() and _is_of_closed_transaction(error):
        return ConfigurationError(_ENDED_INSIDE), error
    return None


def _is_of_closed_transaction(error: BaseException) -> bool:
    """Return whether SQLAlchemy refused work after the end of a session's ``with`` block."""
    return type(error) is InvalidRequestError and "closed transaction" in str(error)


def _from_database(error: BaseException) -> bool:
    seen = error.__cause__ if isinstance(error, ConcurrencyError) else error
    return isinstance(seen, DBAPIError)


_INTERRUPTED = "optilock: interrupted inside COMMIT; the work may be stored or not"
_LOST = "the connection was lost inside COMMIT"
_LOST_WITH_WRITES = "the connection was lost at the last writes of this unit of work"
_IN_ONE_TRIP = ', which commit in the same trip (pipelined=True or "auto")'
_UNKNOWN = (
    ", so the unit is either stored completely or not at all, and its outcome is unknown here. Read"
    " the rows again and compare before you run it once more; or give it exactly_once=True, which"
    " finds out."
)
_HALF = (
    "COMMIT failed on one of several databases of this unit of work, and another one may have"
    " committed already. Compare the rows on each; use sessionmaker(twophase=True) where the"
    " databases support it."
)
_ENDED_INSIDE = (
    "this unit of work went on after session.rollback() or session.close() inside of it: its"
    " transaction was over, and nothing of it is stored. Leave the block with an error to undo the"
    " unit, or put what may be undone alone into session.begin_nested()."
)
_STATEMENT_INTERRUPTED = (
    "this unit of work cannot go on: a statement in it was interrupted (asyncio.timeout(), a"
    " cancelled task, Ctrl-C), and the interruption was caught inside the unit. Its connection was"
    " thrown away, and nothing of the unit is stored. Let the interruption out of the unit, or let"
    " the database limit the time, for example with optilock.lock(obj, timeout=...)."
)
