"""What does optilock cost when it has nothing to do?

One row loaded, changed and committed, against SQLAlchemy's own check: in a session that is there,
and with the session, the ``UnitOfWork`` or the decorated function that is opened for it and closed.
And a resolver that is set but never needed, against none. SQLAlchemy's check runs twice, the second
time as ``native again``: what that makes beside 1.00 is the noise of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from benchmarks.measure import interleave
from benchmarks.models import OptilockItem, create
from benchmarks.plan import MEDIUM, SHORT, Plan
from benchmarks.servers import USUAL, Place
from benchmarks.statements import called, counted
from benchmarks.subjects import ByOrm, Shape, build, whole_units
from benchmarks.table import CountLine, Line, compare
from optilock import merge_fields, watch

__all__ = ["DATABASES", "run"]

#: What it runs on: in memory, for the units alone, Python is all that is measured.
DATABASES = (*USUAL, "mariadb", "memory")

_AGAIN = "native again"
_NAMES = {"optilock": "watched session"}
#: What may be taken of native's time, where it was set.
_GOALS: Mapping[str, float] = {"optilock": 1.03, "UnitOfWork": 1.05, "@unit_of_work": 1.08}

_ONE = 1.03


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        yield from _whole_unit(place, plan, engine)
        if place.name == "memory":  # where there is nothing but Python
            return
        yield from _one_row(place, plan, engine)
        for rows in (1, plan.many):
            yield from _unneeded_resolver(place, plan, engine, rows)


def _whole_unit(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    subjects = whole_units(engine)
    timings = interleave(
        {**subjects, _AGAIN: subjects["native"]},
        rounds=plan.rounds_for(SHORT),
        repeats=plan.repeats_for(place, 1),
    )
    for name in (*subjects, _AGAIN):
        if name == "native":
            continue
        goal = None if place.name == "memory" else _GOALS.get(name)
        yield from compare(
            f"open to close, {_NAMES.get(name, name)}",
            place.label,
            1,
            {"native": timings["native"], name: timings[name]},
            subject=name,
            goals={"load to COMMIT": goal, "load to COMMIT, CPU": None},
        )
    for name, whole in subjects.items():
        question = f"open to close, {_NAMES.get(name, name)}: calls of Python functions"
        subject = "native" if name == "native" else "optilock"
        yield CountLine(question, place.label, 1, called(whole), subject=subject)


def _one_row(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    subjects = build(engine, 1, Shape.SAME)
    timings = interleave(
        {**subjects, _AGAIN: subjects["native"]},
        rounds=plan.rounds_for(SHORT),
        repeats=plan.repeats_for(place, 1),
    )
    goals = {"flush": _ONE, "change to COMMIT": _ONE, "load to COMMIT": _ONE}
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
