"""The result of a run: lines with a goal, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import SPANS, Ratio, Timings, median, ratio

__all__ = ["COLUMNS", "CountLine", "Line", "RatioLine", "compare", "markdown", "to_json"]

COLUMNS = (
    "question",
    "database",
    "rows",
    "native",
    "unversioned",
    "hand-written",
    "optilock",
    "ratio (median, min-max)",
    "goal",
    "reached",
)
_ABSENT = "-"


@dataclass(frozen=True)
class RatioLine:
    """One comparison: every subject as a multiple of ``against``, which is 1.00."""

    question: str
    database: str
    rows: int
    against: str
    ratios: Mapping[str, Ratio]
    seconds: Mapping[str, float] = field(default_factory=dict)
    subject: str = "optilock"
    goal: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the median is within the goal; ``None`` without a goal or without figures."""
        if self.goal is None or self.subject not in self.ratios:
            return None
        return self.ratios[self.subject].median <= self.goal

    def cells(self) -> tuple[str, ...]:
        """The line as texts, in the order of :data:`COLUMNS`."""
        spread = self.ratios.get(self.subject)
        return (
            f"{self.question}, against {self.against}",
            self.database,
            f"{self.rows:,}",
            *(self._multiple(name) for name in ("native", "unversioned", "hand-written")),
            self._multiple("optilock"),
            _ABSENT if spread is None else str(spread),
            _ABSENT if self.goal is None else f"≤ {self.goal:g}",
            _word(self.reached),
        )

    def _multiple(self, name: str) -> str:
        return f"{self.ratios[name].median:.3f}" if name in self.ratios else _ABSENT


@dataclass(frozen=True)
class CountLine:
    """Something that is counted, not timed: statements, deadlocks, lost changes."""

    question: str
    database: str
    rows: int
    count: int
    goal: int | None = None
    subject: str = "optilock"

    @property
    def reached(self) -> bool | None:
        """Whether the count is within the goal; ``None`` without one."""
        return None if self.goal is None else self.count <= self.goal

    def cells(self) -> tuple[str, ...]:
        """The line as texts, in the order of :data:`COLUMNS`; the count is in its subject's."""
        counts = (str(self.count) if name == self.subject else _ABSENT for name in COLUMNS[3:7])
        return (
            self.question,
            self.database,
            f"{self.rows:,}",
            *counts,
            _ABSENT,
            _ABSENT if self.goal is None else f"≤ {self.goal}",
            _word(self.reached),
        )


Line = RatioLine | CountLine


def compare(
    question: str,
    database: str,
    rows: int,
    timings: Timings,
    *,
    against: str = "native",
    subject: str = "optilock",
    goals: Mapping[str, float | None],
) -> list[RatioLine]:
    """A line for each span that ``goals`` names, with its goal."""
    return [
        RatioLine(
            question=f"{question}: {span}",
            database=database,
            rows=rows,
            against=against,
            ratios={name: ratio(timings, name, against, SPANS[span]) for name in timings},
            seconds={name: median(timings, name, SPANS[span]) for name in timings},
            subject=subject,
            goal=goal,
        )
        for span, goal in goals.items()
    ]


def markdown(lines: Iterable[Line], facts: Mapping[str, str]) -> str:
    """The table, and under it what made it."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(line.cells() for line in lines)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return table + "\n\n" + "\n".join(f"- {name}: {fact}" for name, fact in facts.items()) + "\n"


def to_json(lines: Iterable[Line], facts: Mapping[str, str]) -> str:
    """The same, with the seconds behind the ratios."""
    return json.dumps({"facts": dict(facts), "lines": [_plain(line) for line in lines]}, indent=2)


def _plain(line: Line) -> dict[str, Any]:
    values = dict(vars(line)) | {"reached": line.reached}
    if isinstance(line, RatioLine):
        values["ratios"] = {name: vars(ratio) for name, ratio in line.ratios.items()}
        values["seconds"] = dict(line.seconds)
    return values


def _word(reached: bool | None) -> str:
    return _ABSENT if reached is None else ("yes" if reached else "no")
