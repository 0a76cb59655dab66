"""The result of a run: lines with a goal, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import SPANS, Ratio, Timings, median, ratio

__all__ = [
    "COLUMNS",
    "LOAD_COLUMNS",
    "CountLine",
    "Line",
    "LoadLine",
    "RatioLine",
    "compare",
    "from_json",
    "markdown",
    "to_json",
]

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
#: Of the lines about many writers.
LOAD_COLUMNS = (
    "question",
    "database",
    "writers",
    "subject",
    "units/s",
    "ratio (median, min-max)",
    "against",
    "p50, ms",
    "p99, ms",
    "slowest : fastest writer",
    "attempts",
    "deadlocks",
    "lost",
    "broken",
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
    #: More is better: the goal is what must be reached, and not what must not be exceeded.
    at_least: bool = False

    columns = COLUMNS

    @property
    def reached(self) -> bool | None:
        """Whether the median is within the goal; ``None`` without a goal or without figures."""
        if self.goal is None or self.subject not in self.ratios:
            return None
        found = self.ratios[self.subject].median
        return found >= self.goal if self.at_least else found <= self.goal

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
            _ABSENT if self.goal is None else f"{'≥' if self.at_least else '≤'} {self.goal:g}",
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

    columns = COLUMNS

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


@dataclass(frozen=True)
class LoadLine:
    """What the writers of one subject did, who wrote at the same time."""

    question: str
    database: str
    writers: int
    subject: str
    #: Units stored a second, and what that is for each one of ``against`` in the same round.
    goodput: float
    against: str
    ratio: Ratio | None
    #: Seconds from the first attempt to COMMIT.
    p50: float
    p99: float
    fairness: float
    attempts: float
    #: In all turns, where the program sees them through SQLAlchemy.
    deadlocks: int = 0
    #: Changes that were reported as stored and are not there; other promises that are not true.
    lost: int = 0
    broken: int = 0
    goal: int | None = None

    columns = LOAD_COLUMNS

    @property
    def reached(self) -> bool | None:
        """Whether no more was lost or broken than may be; ``None`` without a goal."""
        return None if self.goal is None else self.lost + self.broken <= self.goal

    def cells(self) -> tuple[str, ...]:
        """The line as texts, in the order of :data:`LOAD_COLUMNS`."""
        return (
            self.question,
            self.database,
            str(self.writers),
            self.subject,
            f"{self.goodput:,.0f}",
            _ABSENT if self.ratio is None else str(self.ratio),
            _ABSENT if self.ratio is None else self.against,
            f"{self.p50 * 1000:.2f}",
            f"{self.p99 * 1000:.2f}",
            f"{self.fairness:.2f}",
            f"{self.attempts:.2f}",
            f"{self.deadlocks:,}",
            f"{self.lost:,}",
            f"{self.broken:,}",
            _word(self.reached),
        )


Line = RatioLine | CountLine | LoadLine


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
    """The tables, one for each kind of line, and under them what made them."""
    kinds: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        kinds.setdefault(line.columns, []).append(line)
    tables = [_table(columns, found) for columns, found in kinds.items()]
    about = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    return "\n\n".join((*tables, about)) + "\n"


def _table(columns: Sequence[str], lines: Iterable[Line]) -> str:
    rows = [columns, ("---",) * len(columns), *(line.cells() for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def to_json(lines: Iterable[Line], facts: Mapping[str, str]) -> str:
    """The same, with the seconds behind the ratios."""
    return json.dumps({"facts": dict(facts), "lines": [_plain(line) for line in lines]}, indent=2)


def from_json(text: str) -> tuple[list[Line], dict[str, str]]:
    """Return the lines and the facts of :func:`to_json`."""
    given = json.loads(text)
    return [_line(values) for values in given["lines"]], given["facts"]


def _line(values: dict[str, Any]) -> Line:
    values.pop("reached")
    if "goodput" in values:
        spread = values["ratio"]
        return LoadLine(**values | {"ratio": spread and Ratio(**spread)})
    if "ratios" in values:
        ratios = {name: Ratio(**each) for name, each in values["ratios"].items()}
        return RatioLine(**values | {"ratios": ratios})
    return CountLine(**values)


def _plain(line: Line) -> dict[str, Any]:
    values = dict(vars(line)) | {"reached": line.reached}
    if isinstance(line, LoadLine):
        values["ratio"] = line.ratio and vars(line.ratio)
    if isinstance(line, RatioLine):
        values["ratios"] = {name: vars(ratio) for name, ratio in line.ratios.items()}
        values["seconds"] = dict(line.seconds)
    return values


def _word(reached: bool | None) -> str:
    return _ABSENT if reached is None else ("yes" if reached else "no")
