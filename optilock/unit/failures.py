"""The failures of units and of their attempts, for :class:`optilock.events.Failed`.

A unit that fails in an attempt of a retry does not know whether another attempt follows. So it
leaves a note with the attempt, whose end decides: with another attempt there is the event ``Retry``
alone, otherwise one ``Failed`` for the work and one for each unit in it with another error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optilock import events
from optilock._watched.guard.running_attempts import RunningAttempt
from optilock._watched.session.record import record_of
from optilock.exactly_once.errors import AlreadyDone


def note_failure(own: Any, error: BaseException) -> None:
    """Note that a unit with a transaction of its own ended with ``error``, and nothing is stored.

    ``AlreadyDone`` is no failure: the work is stored, by another unit.
    """
    if isinstance(error, AlreadyDone):
        return
    failed = events.Failed(error, *own.outcome())
    if own.attempt is None:
        events.emit(lambda: failed)
    else:
        own.attempt.failed_in(record_of(own.session).number)
        own.attempt.failed = (*own.attempt.failed, failed)


def name_of_failed(attempt: RunningAttempt) -> str | None:
    """Return the name of the last unit that failed in an attempt."""
    return attempt.failed[-1].name if attempt.failed else None


def report_failures(
    attempt: RunningAttempt, error: BaseException | None, name: str | None, seconds: float
) -> None:
    """Report the failures of an attempt that no other follows."""
    for failed in attempt.failed:
        if failed.error is not error:
            events.emit(lambda failed=failed: failed)  # type: ignore[misc]
    if error is not None and not attempt.stored and not isinstance(error, AlreadyDone):
        last = name or name_of_failed(attempt)
        events.emit(lambda: events.Failed(error, attempt.number, seconds, last))


@contextmanager
def reported_end(run: Any) -> Iterator[None]:
    """Report a run that ends between two attempts: in its wait, its ``on=`` or ``before_retry``."""
    begun = run.begun
    try:
        yield
    except BaseException as error:
        failed = events.Failed(error, begun, run.seconds, run.name)
        events.emit(lambda: failed)
        raise
