"""Times of several subjects, taken in one run, and the ratios between them.

A time says something about the machine; a ratio of two times taken one after the other says
something about the code. So the subjects take turns::

    timings = interleave({"native": native, "optilock": guarded}, rounds=25)
    print(ratio(timings, "optilock", "native", SPANS["flush"]))       # 0.118 (0.109-0.131)

Each round runs every subject once, each round another one goes first, and the direction changes, so
that nobody always runs after the same other. A ratio is made of two times of the *same* round;
what is reported is the median of those ratios, with the smallest and the largest beside it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

__all__ = ["SPANS", "Ratio", "Span", "Timing", "interleave", "median", "order", "ratio"]

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Seconds of one unit of work, in the order in which they are spent."""

    load: float = 0.0
    change: float = 0.0
    flush: float = 0.0
    commit: float = 0.0
    #: Of the whole unit, in this process alone.
    cpu: float = 0.0

    def __add__(self, other: Timing) -> Timing:
        return Timing(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Timing)))


Span = Callable[[Timing], float]
Subject = Callable[[], Timing]
Timings = Mapping[str, Sequence[Timing]]

#: Which part of the unit of work a figure is about.
SPANS: Mapping[str, Span] = {
    "flush": lambda timing: timing.flush,
    "change to COMMIT": lambda timing: timing.change + timing.flush + timing.commit,
    "load to COMMIT": lambda timing: timing.load + timing.change + timing.flush + timing.commit,
    "load to COMMIT, CPU": lambda timing: timing.cpu,
}


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, and how far they were apart."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


def interleave(
    subjects: Mapping[str, Subject], *, rounds: int, warmup: int = 1, repeats: int = 1
) -> dict[str, list[Timing]]:
    """The timings of every subject, one for each round.

    A timing is the sum of ``repeats`` runs, for subjects that are too short to be timed alone.
    The garbage of the one before is collected first, so that nobody pays for another. ``warmup``
    rounds fill the caches and are thrown away.
    """
    for _ in range(warmup):
        for run in subjects.values():
            run()
    timings: dict[str, list[Timing]] = {name: [] for name in subjects}
    for number in range(rounds):
        for name in order(tuple(subjects), number):
            gc.collect()
            timings[name].append(_summed(subjects[name], repeats))
    return timings


def order(items: Sequence[T], number: int) -> tuple[T, ...]:
    """The items for one round: each begins once, then each begins once the other way round."""
    turn, start = divmod(number, len(items))
    rotated = (*items[start:], *items[:start])
    return rotated[::-1] if turn % 2 else rotated


def ratio(timings: Timings, subject: str, against: str, span: Span) -> Ratio:
    """How long ``subject`` takes when ``against`` takes 1.00, round by round."""
    ratios = [
        span(ours) / span(theirs)
        for ours, theirs in zip(timings[subject], timings[against], strict=True)
    ]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def median(timings: Timings, subject: str, span: Span) -> float:
    """Seconds of ``subject``: to recognise a machine by, never a verdict."""
    return statistics.median(span(timing) for timing in timings[subject])


def _summed(run: Subject, repeats: int) -> Timing:
    total = Timing()
    for _ in range(repeats):
        total += run()
    return total
