"""The outcome of a unit after an error inside COMMIT: stored, not stored, or unknown."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, InvalidRequestError

from optilock.dialects.transient import commit_outcome_unknown
from optilock.errors import CommitOutcomeUnknown, ConcurrencyError
from optilock.exactly_once.units import note_of
from optilock.watched.session.record import record_of


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


def is_of_closed_transaction(error: BaseException) -> bool:
    """Return whether SQLAlchemy refused work after the end of a session's ``with`` block."""
    return type(error) is InvalidRequestError and "closed transaction" in str(error)


def _from_database(error: BaseException) -> bool:
    seen = error.__cause__ if isinstance(error, ConcurrencyError) else error
    return isinstance(seen, DBAPIError)


_INTERRUPTED = "optilock: interrupted inside COMMIT; the work may be stored or not"
_LOST = "the connection was lost inside COMMIT"
_LOST_WITH_WRITES = "the connection was lost at the last writes of this unit of work"
_IN_ONE_TRIP = ', which commit in the same trip (pipelined=True or "auto", short=True)'
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
