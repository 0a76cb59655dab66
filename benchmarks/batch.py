"""What does a flush of many changed rows cost?

Against SQLAlchemy's own check for several sizes and shapes; ten times the rows against the rows;
with ten rows in conflict, merged in the same transaction, against none; and with every row in
conflict, four times the rows against the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sqlalchemy import Engine, String, cast, update
from sqlalchemy.orm import sessionmaker

from benchmarks.measure import interleave
from benchmarks.models import OptilockItem, create, table_of
from benchmarks.plan import LONG, MANY, MEDIUM, Plan
from benchmarks.servers import USUAL, Place
from benchmarks.statements import counted
from benchmarks.subjects import ByOrm, Shape, build
from benchmarks.table import CountLine, Line, compare
from optilock import merge_fields, watch

__all__ = ["DATABASES", "run"]

DATABASES = (*USUAL, "mariadb")

_CONFLICTS = 10
_MEASURED = ("flush", "change to COMMIT")
#: The part of native's time that 1,000 rows may take; on SQLite there is no round trip to save.
_GOALS: Mapping[str, float] = {"socket": 0.28, "delayed": 0.03, "mariadb": 0.20}
#: And of the time without any version, which sends one statement a row where columns alternate.
_UNVERSIONED = {Shape.SAME: 1.00, Shape.ALTERNATING: 0.15}


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        for rows in plan.sizes(place):
            for shape in _shapes(place, plan, rows):
                yield from _batch(place, plan, engine, rows, shape)
        if place.name != "delayed":
            yield from _growth(place, plan, engine)
            yield from _settling(place, plan, engine)
        yield from _conflicts(place, plan, engine)


def _shapes(place: Place, plan: Plan, rows: int) -> tuple[Shape, ...]:
    if plan.quick and place.name == "delayed":
        return (Shape.ALTERNATING,)
    both = (Shape.SAME, Shape.ALTERNATING)
    return (*both, Shape.LIVELY) if rows == plan.many and not plan.quick else both


def _batch(place: Place, plan: Plan, engine: Engine, rows: int, shape: Shape) -> Iterator[Line]:
    trips = place.name == "delayed" and rows >= plan.many
    timings = interleave(
        build(engine, rows, shape),
        rounds=plan.rounds_for(LONG if trips or rows > plan.many else MEDIUM),
        repeats=plan.repeats_for(place, rows),
    )
    goal = _GOALS.get(place.name) if rows == MANY else None
    yield from compare(
        shape.value, place.label, rows, timings, goals=dict.fromkeys(_MEASURED, goal)
    )
    if place.name == "socket" and rows == MANY and shape in _UNVERSIONED:
        goals = dict.fromkeys(_MEASURED, _UNVERSIONED[shape])
        unversioned = "unversioned"
        yield from compare(
            shape.value, place.label, rows, timings, against=unversioned, goals=goals
        )


def _growth(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    large = 10 * plan.many
    create(engine, OptilockItem, large)
    sessions = watch(sessionmaker(engine))
    for shape in (Shape.SAME, Shape.ALTERNATING):
        subjects = {
            "a tenth of the rows": ByOrm(sessions, OptilockItem, plan.many, shape),
            "optilock": ByOrm(sessions, OptilockItem, large, shape),
        }
        timings = interleave(subjects, rounds=plan.rounds_for(LONG))
        yield from compare(
            f"growth, {shape.value}",
            place.label,
            large,
            timings,
            against="a tenth of the rows",
            goals=dict.fromkeys(_MEASURED, plan.goal(large, 11.0)),
        )


def _conflicts(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    rows = plan.many
    create(engine, OptilockItem, rows + _CONFLICTS)
    sessions = watch(sessionmaker(engine), on_conflict=merge_fields)
    with place.others() as others:
        # Both times the other writer changes ten rows: ours, or the ten behind ours.
        subjects = {
            "no conflict": ByOrm(
                sessions, OptilockItem, rows, Shape.SAME, _other_writer(others, first=rows + 1)
            ),
            "optilock": ByOrm(
                sessions, OptilockItem, rows, Shape.SAME, _other_writer(others, first=1)
            ),
        }
        timings = interleave(subjects, rounds=plan.rounds_for(MEDIUM))
        more = counted(engine, subjects["optilock"]) - counted(engine, subjects["no conflict"])
    goal = plan.goal(rows, 1.3)
    yield from compare(
        f"{_CONFLICTS} conflicts merged",
        place.label,
        rows,
        timings,
        against="no conflict",
        goals=dict.fromkeys(_MEASURED, goal),
    )
    yield CountLine(f"{_CONFLICTS} conflicts: more statements", place.label, rows, more, goal=2)


def _settling(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    many = 4 * plan.many
    create(engine, OptilockItem, many)
    sessions = watch(sessionmaker(engine), on_conflict=merge_fields)
    with place.others() as others:
        subjects = {
            "a quarter of the rows": ByOrm(
                sessions,
                OptilockItem,
                plan.many,
                Shape.SAME,
                _other_writer(others, first=1, rows=plan.many),
            ),
            "optilock": ByOrm(
                sessions, OptilockItem, many, Shape.SAME, _other_writer(others, first=1, rows=many)
            ),
        }
        timings = interleave(subjects, rounds=plan.rounds_for(LONG))
    yield from compare(
        "every row in conflict, merged",
        place.label,
        many,
        timings,
        against="a quarter of the rows",
        goals=dict.fromkeys(_MEASURED, plan.goal(plan.many, 4.5)),
    )


def _other_writer(engine: Engine, *, first: int, rows: int = _CONFLICTS) -> Callable[[], None]:
    """These rows get another note and another version, committed on another connection."""
    table = table_of(OptilockItem)
    version = table.c.version + 1
    changed = (
        update(table)
        .where(table.c.id.between(first, first + rows - 1))
        .values(note=cast(version, String), version=version)
    )

    def write() -> None:
        with engine.begin() as connection:
            connection.execute(changed)

    return write
