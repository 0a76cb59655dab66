"""What does optilock cost when it has nothing to do?

One row loaded, changed and committed, against SQLAlchemy's own check; and a resolver that is set
but never needed, against none. SQLAlchemy's check runs twice, the second time as ``native again``:
what that makes beside 1.00 is the noise of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from benchmarks.measure import interleave
from benchmarks.models import OptilockItem, create
from benchmarks.plan import MEDIUM, SHORT, Plan
from benchmarks.servers import Place
from benchmarks.statements import counted
from benchmarks.subjects import ByOrm, Shape, build
from benchmarks.table import CountLine, Line, compare
from optilock import merge_fields, watch

__all__ = ["run"]

_AGAIN = "native again"


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        yield from _one_row(place, plan, engine)
        for rows in (1, plan.many):
            yield from _unneeded_resolver(place, plan, engine, rows)


def _one_row(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    subjects = build(engine, 1, Shape.SAME)
    timings = interleave(
        {**subjects, _AGAIN: subjects["native"]},
        rounds=plan.rounds_for(SHORT),
        repeats=plan.repeats_for(place, 1),
    )
    goals = {"flush": 1.05, "change to COMMIT": 1.05, "load to COMMIT": 1.05}
    yield from compare("one row", place.label, 1, timings, goals=goals)
    # What the same code makes of itself is how far a ratio of this run can be trusted.
    noise = {"native": timings["native"], _AGAIN: timings[_AGAIN]}
    yield from compare(
        "one row, native again", place.label, 1, noise, subject=_AGAIN, goals=dict.fromkeys(goals)
    )


def _unneeded_resolver(place: Place, plan: Plan, engine: Engine, rows: int) -> Iterator[Line]:
    create(engine, OptilockItem, rows)
    without = ByOrm(watch(sessionmaker(engine)), OptilockItem, rows, Shape.SAME)
    resolving = watch(sessionmaker(engine), on_conflict=merge_fields)
    subjects = {
        "without": without,
        "optilock": ByOrm(resolving, OptilockItem, rows, Shape.SAME),
    }
    timings = interleave(
        subjects,
        rounds=plan.rounds_for(SHORT if rows == 1 else MEDIUM),
        repeats=plan.repeats_for(place, rows),
    )
    goal = plan.goal(rows, 1.05)
    yield from compare(
        "resolver set, no conflict",
        place.label,
        rows,
        timings,
        against="without",
        goals={"flush": goal, "change to COMMIT": goal},
    )
    more = counted(engine, subjects["optilock"]) - counted(engine, without)
    yield CountLine("resolver set: more statements", place.label, rows, more, goal=0)
