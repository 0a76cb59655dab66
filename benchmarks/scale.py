"""Does the cost of a row stay what it is, with more dirty rows and in larger tables?

From 10 to 100,000 dirty rows in one flush, each size against a tenth of it; and 1,000 rows that lie
apart, out of a table of a thousand rows to one of ten million, against the same with no version. On
PostgreSQL a change of ten rows reads none without an index, however many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.measure import Subject, Timing, interleave
from benchmarks.models import OptilockItem, PlainItem, create, table_of
from benchmarks.plan import LONG, Plan
from benchmarks.series import NUMBERS
from benchmarks.servers import Place
from benchmarks.subjects import ByOrm, Shape, amounts_written
from benchmarks.table import CountLine, Line, compare
from optilock import watch

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "sqlite", "mariadb")

_DIRTY = 100_000
_TABLES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_APART = 1_000
#: Ten times the rows may take a little more than ten times as long.
_GROWTH = 11.0
_MEASURED = ("flush", "change to COMMIT")
_stamps = itertools.count(1)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        yield from _dirty(place, plan, engine)
        for rows in _TABLES[:2] if plan.quick or plan.many < _APART else _TABLES:
            yield from _table(place, plan, engine, rows)


def _dirty(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    most = plan.many if plan.quick and plan.rounds is None else 100 * plan.many
    sizes = [size for size in (10**power for power in range(1, 6)) if size <= most]
    create(engine, OptilockItem, sizes[-1])
    sessions = watch(sessionmaker(engine))
    for shape in (Shape.SAME, Shape.ALTERNATING):
        for less, more in itertools.pairwise(sizes):
            subjects = {
                "a tenth of the rows": ByOrm(sessions, OptilockItem, less, shape),
                "optilock": ByOrm(sessions, OptilockItem, more, shape),
            }
            timings = interleave(subjects, rounds=plan.rounds_for(LONG))
            goal = _GROWTH if more in (10_000, _DIRTY) else None
            yield from compare(
                f"dirty rows, {shape.value}",
                place.label,
                more,
                timings,
                against="a tenth of the rows",
                goals=dict.fromkeys(_MEASURED, goal),
            )


def _table(place: Place, plan: Plan, engine: Engine, rows: int) -> Iterator[Line]:
    models = {"unversioned": PlainItem, "optilock": OptilockItem}
    for model in models.values():
        _fill(engine, model, rows)
    makers = {"unversioned": sessionmaker(engine), "optilock": watch(sessionmaker(engine))}
    many = min(_APART, plan.many)
    subjects = {
        name: _apart(makers[name], model, range(1, rows + 1, max(1, rows // many)))
        for name, model in models.items()
    }
    timings = interleave(subjects, rounds=plan.rounds_for(2 * LONG))
    yield from compare(
        f"{many:,} rows of so many",
        place.label,
        rows,
        timings,
        against="unversioned",
        goals=dict.fromkeys((*_MEASURED, "load to COMMIT"), None),
    )
    if place.name == "socket" and rows > _APART:
        ten = _apart(makers["optilock"], OptilockItem, range(1, rows + 1, rows // 10))
        count = _read_without_index(engine, ten)
        question = "rows read without an index to change ten"
        yield CountLine(question, place.label, rows, count, goal=0)
    for model in models.values():
        table_of(model).drop(engine)


def _apart(sessions: sessionmaker[Session], model: Any, keys: range) -> Subject:
    wanted = select(model).where(model.id.in_(keys)).order_by(model.id)

    def write() -> Timing:
        with sessions() as session:
            return amounts_written(session, lambda on: on.scalars(wanted).all(), next(_stamps))

    return write


def _read_without_index(engine: Engine, write: Subject) -> int:
    """Rows, as PostgreSQL counts them; its connection tells that when it is asked to."""
    counts = []
    for work in (lambda: None, write):
        work()
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_stat_force_next_flush()"))
            connection.commit()
            read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = :name"
            counts.append(connection.scalar(text(read), {"name": table_of(OptilockItem).name}))
    return int(counts[1] - counts[0])


def _fill(engine: Engine, model: type[Any], rows: int) -> None:
    """The model's table, new, with so many rows, made by the database."""
    create(engine, model, 1)
    table = table_of(model)
    names = ["id", "name", "amount", "note"] + ["version"] * ("version" in table.c)
    values = ["n", "'name'", "0", "'note'"] + ["1"] * ("version" in table.c)
    statement = (
        f"INSERT INTO {table.name} ({', '.join(names)}) {NUMBERS[engine.dialect.name]}"
        f" SELECT {', '.join(values)} FROM numbers"
    )
    with engine.begin() as connection:
        connection.execute(table.delete())
        connection.execute(text(statement), {"most": rows})
    settled = {"postgresql": "VACUUM ANALYZE", "sqlite": "ANALYZE"}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        way = settled.get(engine.dialect.name, "ANALYZE TABLE")
        connection.execute(text(f"{way} {table.name}"))
