"""What came of one strategy: counts, losses, speed. Values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optilock import Entry
from optilock.demo.editors import Report
from optilock.demo.losses import Losses

__all__ = ["Outcome", "outcome_of", "percentile"]


@dataclass(frozen=True)
class Outcome:
    """One row of the table. ``latencies`` are milliseconds, sorted."""

    name: str
    asked: int
    committed: int
    losses: Losses
    conflicts: int
    resolved: int
    retries: int
    #: From the common start to the last commit.
    seconds: float
    latencies: tuple[float, ...]
    told: Entry[Any] | None

    @property
    def edits_per_second(self) -> float:
        return self.committed / self.seconds if self.seconds else 0.0

    @property
    def sound(self) -> bool:
        """Everything that was committed is stored, once, and nothing else."""
        return not (self.losses.lost or self.losses.surplus or self.losses.damaged)


def outcome_of(
    name: str, *, asked: int, reports: Sequence[Report], losses: Losses, seconds: float
) -> Outcome:
    """Add up what the editors report."""
    latencies = sorted(1000 * each for report in reports for each in report.latencies)
    return Outcome(
        name=name,
        asked=asked,
        committed=sum(len(report.committed) for report in reports),
        losses=losses,
        conflicts=sum(report.conflicts for report in reports),
        resolved=sum(report.resolved for report in reports),
        retries=sum(report.retries for report in reports),
        seconds=seconds,
        latencies=tuple(latencies),
        told=next((report.told for report in reports if report.told is not None), None),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values; 0.0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.0
    """
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
