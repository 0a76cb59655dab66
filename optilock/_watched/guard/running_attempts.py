"""The attempt of a retry that runs, with the rows that it and the attempts before it wanted.

``attempt_here`` is the attempt of the context: a thread or a task that an attempt starts is a part
of it if it has a copy of its context.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from optilock import events
from optilock._mapped import Place, State, facts
from optilock._watched.rows.entries import Attempt
from optilock._watched.rows.stored import Values

#: What ``repeat_values=`` takes; None: the row's resolver decides.
RepeatValues = Literal["refuse", "overwrite"]
#: A row of a database.
Key = tuple[Any, Place]


class WantedRow(NamedTuple):
    """The values that an attempt wanted in a row, and the row that it found instead."""

    side: Attempt
    stored: Values | None = None


Rows = dict[Key, WantedRow]


def repeats_of(wanted: Rows, around: RunningAttempt | None) -> Rows:
    """For an attempt: what its run wanted before, and the run around it."""
    rows = {} if around is None or around.repeats is None else dict(around.repeats)
    add_wanted(rows, wanted)
    return rows


def add_wanted(known: Rows, more: Rows) -> None:
    """Add rows: each with the values wanted last, and those read when it was wanted first.

    An attempt that fails has not shown to anybody what it has read.
    """
    for key, wanted in more.items():
        known[key] = _newest(known[key], wanted) if key in known else wanted


def _newest(before: WantedRow, now: WantedRow) -> WantedRow:
    first, last, known = before.side, now.side, facts(now.side.mapper)
    if first.action != last.action:
        return now
    if last.action == "delete":
        return before
    wanted = {**first.changes, **last.changes}
    older = {name for name in first.changes if known.same(name, first.changes[name], wanted[name])}
    if not older:
        return now
    original = {name: value for name, value in last.original.items() if name not in older}
    of_first = {*older, known.token} & first.original.keys()
    original.update((name, first.original[name]) for name in of_first)
    return WantedRow(replace(last, original=original, changes=wanted), now.stored)


@dataclass(eq=False)
class RunningAttempt:
    """One attempt of a retry: its number, from 1, and when the first began."""

    number: int
    #: ``time.monotonic()``, in seconds.
    started: float
    owner: object
    #: In events: that of the unit, or of the decorated function.
    name: str | None = None
    #: A unit in it was stored, and failed afterwards: another attempt would store it twice.
    stored: bool = False
    #: The rows that were wanted before; None in a first attempt.
    repeats: Rows | None = None
    #: Whether the next attempt gets the values that this one wanted.
    remembers: bool = True
    #: What this one wanted of the rows of a flush, or a transaction, that has failed.
    wanted: Rows = field(default_factory=dict)
    #: What it has stored (:mod:`optilock._watched.guard.stored_work`).
    stored_work: list[Any] = field(default_factory=list)
    #: Objects that were edited before it (:mod:`optilock._watched.guard.outside_edits`).
    edited: dict[State, Any] = field(default_factory=dict)
    #: The number of its first transaction that failed.
    failed_since: int | None = None
    #: The units in it that failed (:mod:`optilock.unit.failures`).
    failed: tuple[events.Failed, ...] = ()

    def failed_in(self, number: int) -> None:
        """Note that the transaction with this number failed."""
        if self.failed_since is None or number < self.failed_since:
            self.failed_since = number

    def over(self) -> None:
        """End the attempt: a copy of its context is outside of it from now on."""
        self.repeats, self.remembers = None, False


attempt_here: ContextVar[RunningAttempt | None] = ContextVar("optilock_attempt", default=None)
