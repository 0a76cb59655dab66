"""Do batches that overlap in opposite order lock each other out?

Several processes read overlapping halves of one small table, raise a number in every row, and
write the batch: half of them from the first row to the last, half from the last to the first, and
neighbouring rows set different columns. Whoever locks rows in the caller's order waits for somebody
who waits for him, and the database ends one of the two: a deadlock.

The hand-written executemany shows that the arrangement does provoke them. Under optilock rows are
locked in primary-key order and the additions meet in ``add_delta``: no deadlock, and at the end the
stored sums are what was committed, with one new version for every row written.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import Engine, bindparam, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from benchmarks.models import Ledger, create, table_of
from benchmarks.plan import Plan
from benchmarks.servers import Place, opened
from benchmarks.table import CountLine, Line
from optilock import ConcurrencyError, watch
from optilock.resolvers import add_delta, per_field

__all__ = ["DATABASES", "Tally", "run"]

#: A delay would only make it slower.
DATABASES = ("socket", "sqlite", "mariadb")

_PROCESSES = 4
_TABLE = 60
_BATCH = 30
_UNITS = 60
_QUICK_UNITS = 20
#: Of PostgreSQL, and of MariaDB.
_DEADLOCKS = {"40P01", 1213}
#: Seconds that the processes wait for the last of them to start.
_START = 60


@dataclass(frozen=True)
class Tally:
    """What came of the batches of one process, or of all together."""

    #: Rows raised by one in batches that were committed.
    raised: int = 0
    deadlocks: int = 0
    #: Batches that were refused as a conflict, or ended by the database for another reason.
    refused: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.raised + other.raised,
            self.deadlocks + other.deadlocks,
            self.refused + other.refused,
        )


@dataclass(frozen=True)
class Job:
    """The batches of one process."""

    url: str
    subject: str
    number: int
    units: int


Write = Callable[[list[int]], None]


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    units = plan.rounds or (_QUICK_UNITS if plan.quick else _UNITS)
    for subject in _WRITERS:
        yield from _overlap(place, subject, units)


def _overlap(place: Place, subject: str, units: int) -> Iterator[Line]:
    with place.engine() as engine:
        create(engine, Ledger, _TABLE)
        tally = _together([Job(place.url, subject, number, units) for number in range(_PROCESSES)])
        stored, bumps = _sums(engine)
    guarded = subject == "optilock"

    def line(question: str, count: int, goal: int | None) -> CountLine:
        return CountLine(
            f"overlapping batches: {question}", place.label, tally.raised, count, goal, subject
        )

    yield line("deadlocks", tally.deadlocks, 0 if guarded else None)
    yield line("lost changes", tally.raised - stored, 0)
    yield line("batches refused", tally.refused, None)
    if guarded:
        yield line("rows without a version of their own", abs(tally.raised - bumps), 0)


def _sums(engine: Engine) -> tuple[int, int]:
    """What is stored: the numbers raised, and how often a version moved."""
    table = table_of(Ledger)
    with engine.connect() as connection:
        sums = select(func.sum(table.c.odd + table.c.even), func.sum(table.c.version - 1))
        raised, bumps = connection.execute(sums).one()
    return int(raised), int(bumps)


def _together(jobs: list[Job]) -> Tally:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(jobs))
    with ProcessPoolExecutor(len(jobs), context, _wait_for_all, (barrier,)) as pool:
        return sum(pool.map(_work, jobs), Tally())


def _wait_for_all(barrier: Barrier) -> None:
    barrier.wait(_START)


def _work(job: Job) -> Tally:
    chance = random.Random(job.number)
    with opened(job.url) as engine:
        write = _WRITERS[job.subject](engine)
        return sum((_tried(write, _batch(chance, job.number)) for _ in range(job.units)), Tally())


def _batch(chance: random.Random, number: int) -> list[int]:
    """Half of the table, upwards or downwards."""
    return sorted(chance.sample(range(1, _TABLE + 1), _BATCH), reverse=bool(number % 2))


def _tried(write: Write, keys: list[int]) -> Tally:
    try:
        write(keys)
    except ConcurrencyError:
        return Tally(refused=1)
    except DBAPIError as error:
        codes = {getattr(error.orig, "sqlstate", None), *getattr(error.orig, "args", ())[:1]}
        return Tally(deadlocks=1) if codes & _DEADLOCKS else Tally(refused=1)
    return Tally(raised=len(keys))


def _guarded(engine: Engine) -> Write:
    sessions = watch(sessionmaker(engine), on_conflict=per_field(odd=add_delta, even=add_delta))

    def write(keys: list[int]) -> None:
        with sessions.begin() as session:
            rows = {row.id: row for row in session.scalars(select(Ledger))}
            for position, key in enumerate(keys):
                name = _column(position)
                setattr(rows[key], name, getattr(rows[key], name) + 1)

    return write


def _handwritten(engine: Engine) -> Write:
    table = table_of(Ledger)
    statements: Mapping[str, Any] = {
        name: update(table).where(table.c.id == bindparam("key")).values({name: table.c[name] + 1})
        for name in ("odd", "even")
    }

    def write(keys: list[int]) -> None:
        with engine.begin() as connection:
            for position, key in enumerate(keys):
                connection.execute(statements[_column(position)], {"key": key})

    return write


def _column(position: int) -> str:
    return "odd" if position % 2 else "even"


_WRITERS: Mapping[str, Callable[[Engine], Write]] = {
    "hand-written": _handwritten,
    "optilock": _guarded,
}
