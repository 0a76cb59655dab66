"""All benchmarks in one run, and the figures and pictures of ``docs/contributing/benchmarks``.

::

    python -m benchmarks --report                # everything; about an hour on a quiet machine
    python -m benchmarks --report smallbank ycsb # these anew; the others stay

Each benchmark that is done is a JSON file. The tables (``figures.md``) and the pictures are made of
these files alone, so a test can tell whether they belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.plan import Plan
from benchmarks.plots import Bar, Curve, Point, bars, curves, points
from benchmarks.table import Line, LoadLine, RatioLine, from_json, markdown

__all__ = ["FIGURES", "RUNS", "Results", "Run", "Shown", "load", "pictures", "write"]

FIGURES = Path("docs/contributing/benchmarks")
#: The page that sums the figures up, from their folder.
_PAGE = "../../explanation/benchmarks.md"
Results = Mapping[str, Sequence[Line]]

_OURS = ("optilock", "optilock, optimistic", "optilock, pipelined")
_CROWD = (*_OURS, "SELECT FOR UPDATE", "native, retried", "unversioned")
_STANDARD = (
    *_CROWD,
    "SERIALIZABLE, retried",
    "Django, filter(version)",
    "Django, select_for_update",
    "hand-written",
)
_WRITERS = (1, 2, 8, 16)


@dataclass(frozen=True)
class Run:
    """How much one benchmark does in a report."""

    plan: Plan = field(default_factory=Plan)
    #: Without them, all that the benchmark runs on.
    databases: tuple[str, ...] = ()


_SOCKET = ("socket",)
_TWO = ("socket", "sqlite")
_SERVERS = ("socket", "mariadb")
RUNS: Mapping[str, Run] = {
    "overhead": Run(Plan(rounds=24), (*_TWO, "memory")),
    "trips": Run(Plan(rounds=24)),
    "batch": Run(Plan(rounds=8), (*_TWO, "mariadb")),
    "scale": Run(Plan(quick=True, rounds=3), _TWO),
    "memory": Run(Plan(), _TWO),
    "network": Run(Plan(quick=True)),
    "entities": Run(Plan(rounds=40), _TWO),
    "preconditions": Run(),
    "conflicts": Run(Plan(quick=True, rounds=3), _SERVERS),
    "contention": Run(Plan(writers=_WRITERS, seconds=1, rounds=3, subjects=_CROWD), _SERVERS),
    "smallbank": Run(Plan(writers=_WRITERS, seconds=1, rounds=3, subjects=_STANDARD), _SERVERS),
    "ycsb": Run(Plan(writers=_WRITERS, seconds=1, rounds=3, subjects=_STANDARD), _SERVERS),
    "tpcb": Run(Plan(writers=_WRITERS, seconds=1, rounds=3, subjects=_STANDARD), _SERVERS),
    "isolation": Run(Plan(quick=True, rounds=3), _SERVERS),
    "overlap": Run(Plan(), _TWO),
    "exactly_once": Run(Plan(rounds=20), ("socket", "delayed", "mariadb")),
    "scopes": Run(Plan(rounds=4, seconds=1)),
    "leases": Run(Plan(rounds=20), _TWO),
    "queue": Run(Plan(), _TWO),
    "guard_trigger": Run(Plan(rounds=20)),
    "rollout": Run(Plan(quick=True), _SERVERS),
    "telemetry": Run(Plan(rounds=80)),
    "live": Run(Plan(rounds=40)),
}


_BEGINS, _ENDS = "<!-- figures -->", "<!-- end of the figures -->"
_WHOLE, _COMMIT, _LOCKS = "load to COMMIT", "change to COMMIT", "SELECT FOR UPDATE"


class Shown(NamedTuple):
    """A row of the page's summary: a ratio of one benchmark."""

    work: str
    benchmark: str
    question: str
    #: Rows, or writers.
    size: int
    against: str = "native"
    subject: str = "optilock"

    def cell(self, results: Results, database: str) -> str:
        """Return the ratio on this database, or nothing."""
        for line in _ratios(results, self.benchmark, database):
            about = line.question, line.rows, line.against
            if about == (self.question, self.size, self.against):
                return f"{line.ratios[self.subject].median:.2f}"
        return ""


def _crowded(name: str, work: str) -> Iterator[Shown]:
    for figure in ("units/s", "p99"):
        question = f"{work}: {figure}, 8 writers, optilock"
        yield Shown(f"{work}, 8 writers, {figure}", name, question, 8, _LOCKS)


_WATCHED, _UNIT, _DECORATED = "watched session", "UnitOfWork", "@unit_of_work"
_SAME, _MIXED = "same columns", "alternating columns"
_SHOWN = (
    Shown(f"one row, {_WATCHED}", "overhead", f"open to close, {_WATCHED}: {_WHOLE}", 1),
    *(
        Shown(f"one row, `{name}`", "overhead", f"open to close, {name}: {_WHOLE}", 1, subject=name)
        for name in (_UNIT, _DECORATED)
    ),
    *(
        Shown(f"1,000 rows, {shape}", "batch", f"{shape}: {_COMMIT}", 1_000, against)
        for shape in (_SAME, _MIXED)
        for against in ("native", "unversioned")
    ),
    *_crowded("smallbank", "SmallBank"),
    *_crowded("ycsb", "YCSB-A"),
    *_crowded("tpcb", "TPC-B like"),
    *_crowded("contention", "hot row"),
    *_crowded("contention", "zipf 0.99"),
)
_AGAINST = {"native": "`version_id_col`", "unversioned": "no version", _LOCKS: f"`{_LOCKS}`"}
_DATABASES = ("PostgreSQL, socket", "SQLite", "MariaDB, socket")
_HEAD = f"""# Figures

All figures of one report. [Benchmarks]({_PAGE}) says how to read them.
"""


def load(folder: Path) -> tuple[dict[str, list[Line]], dict[str, dict[str, str]]]:
    """Return the lines and the facts of each benchmark that the folder has."""
    lines, facts = {}, {}
    for name in RUNS:
        path = folder / f"{name}.json"
        if path.exists():
            lines[name], facts[name] = from_json(path.read_text(encoding="utf-8"))
    return lines, facts


def write(folder: Path, questions: Mapping[str, str]) -> list[Path]:
    """Write the tables and the pictures of what the folder has; return their files."""
    lines, facts = load(folder)
    parts = [_HEAD]
    for name, found in lines.items():
        parts.append(f"## {name}\n\n{questions[name]}\n\n{markdown(found, facts[name])}")
    texts = {"figures.md": "\n".join(parts), **pictures(lines)}
    page = folder / _PAGE
    if page.exists():
        texts[_PAGE] = with_summary(page.read_text(encoding="utf-8"), lines)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def with_summary(page: str, results: Results) -> str:
    """Return a page whose summary, if it has one, is that of these results."""
    if _BEGINS not in page:
        return page
    before, _, rest = page.partition(_BEGINS)
    _, _, after = rest.partition(_ENDS)
    return f"{before}{_BEGINS}\n\n{_summary(results)}\n\n{_ENDS}{after}"


def _summary(results: Results) -> str:
    rows = ["| work | against | PostgreSQL | SQLite | MariaDB |", "|---|---|---|---|---|"]
    for shown in _SHOWN:
        cells = [shown.cell(results, database) for database in _DATABASES]
        if any(cells):
            rows.append("| " + " | ".join((shown.work, _AGAINST[shown.against], *cells)) + " |")
    return "\n".join(rows)


def pictures(results: Results) -> dict[str, str]:
    """Return the pictures that can be drawn, by the names of their files."""
    drawn = {name: picture(results) for name, picture in _PICTURES.items()}
    return {name: text for name, text in drawn.items() if text}


def _one_row(results: Results) -> str:
    found = {
        line.subject: line
        for line in _ratios(results, "overhead", "PostgreSQL, socket")
        if line.question.startswith("open to close") and line.question.endswith("load to COMMIT")
    }
    names = {"optilock": "watched session", "unversioned": "no version (loses)"}
    rows = [
        _bar(names.get(subject, subject), line, ours=subject in _IN_SESSIONS)
        for subject, line in found.items()
        if subject != "native again"
    ]
    rows.append(Bar("version_id_col", 1, 1, 1))
    return (
        bars(
            "One row: load, change, COMMIT",
            "time against SQLAlchemy's version_id_col, PostgreSQL on a socket; shorter is faster",
            rows,
        )
        if found
        else ""
    )


_IN_SESSIONS = ("optilock", "UnitOfWork", "@unit_of_work")


def _bar(name: str, line: RatioLine, *, ours: bool, subject: str = "") -> Bar:
    ratio = line.ratios[subject or line.subject]
    loses = (subject or line.subject) == "unversioned"
    return Bar(name, ratio.median, ratio.low, ratio.high, ours, loses)


def _many_rows(results: Results) -> str:
    rows = []
    for line in _ratios(results, "batch", "PostgreSQL, socket"):
        shape, _, span = line.question.partition(": ")
        if line.rows == 1_000 and span == "change to COMMIT" and line.against == "native":
            for subject, name in _OF_BATCHES.items():
                if shape in _SHAPES and subject in line.ratios:
                    ours = subject == "optilock"
                    label = f"{name}, {_SHAPES[shape]}"
                    rows.append(_bar(label, line, ours=ours, subject=subject))
    return (
        bars(
            "1,000 rows: change, flush, COMMIT",
            "time against SQLAlchemy's version_id_col = 1.00, PostgreSQL on a socket",
            rows,
        )
        if rows
        else ""
    )


_SHAPES = {"same columns": "same", "alternating columns": "mixed"}
_OF_BATCHES = {"optilock": "optilock", "unversioned": "no version", "hand-written": "by hand"}


def _distance(results: Results) -> str:
    places: dict[str, list[tuple[float, float]]] = {}
    for database, distance in _DISTANCES.items():
        for line in _ratios(results, "trips", database):
            if line.against != "native" or line.subject == "native again":
                continue
            if line.question.endswith("load to COMMIT"):
                where = (distance, line.ratios[line.subject].median)
                places.setdefault(line.subject, []).append(where)
    found = [Curve(name, each, ours=True) for name, each in places.items()]
    if not found:
        return ""
    native = Curve("version_id_col", [(distance, 1.0) for distance in _DISTANCES.values()])
    return curves(
        "One row, with the database 0, 1 and 5 ms away",
        "time against SQLAlchemy's version_id_col at the same distance; lower is faster",
        "ms to the database and back",
        [native, *found],
    )


_DISTANCES = {"PostgreSQL, socket": 0.0, "PostgreSQL, 1 ms": 1.0, "PostgreSQL, 5 ms": 5.0}


def _contention(results: Results) -> str:
    found = [
        Point(
            line.subject,
            line.goodput,
            line.p99 * 1000,
            ours=line.subject.startswith("optilock"),
            loses=line.lost + line.broken > 0,
        )
        for line in results.get("smallbank", ())
        if isinstance(line, LoadLine)
        and (line.database, line.writers) == ("PostgreSQL, socket", 8)
        and line.subject in _DRAWN
    ]
    return (
        points(
            "SmallBank, 8 writers",
            "right is more, low is steadier; a hollow point lost money",
            ("units stored a second", "p99 of a unit, ms"),
            found,
        )
        if found
        else ""
    )


#: A picture holds eight.
_DRAWN = (
    "optilock",
    "optilock, optimistic",
    "SELECT FOR UPDATE",
    "native, retried",
    "SERIALIZABLE, retried",
    "Django, filter(version)",
    "Django, select_for_update",
    "unversioned",
)


def _ratios(results: Results, name: str, database: str) -> Iterable[RatioLine]:
    for line in results.get(name, ()):
        if isinstance(line, RatioLine) and line.database == database:
            yield line


_PICTURES: Mapping[str, Callable[[Results], str]] = {
    "one-row.svg": _one_row,
    "many-rows.svg": _many_rows,
    "distance.svg": _distance,
    "contention.svg": _contention,
}
