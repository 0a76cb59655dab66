"""What does a conflict cost whoever meets it?

One writer adds one to a number. In no unit, in one of ten, in every second and in each one,
somebody else adds to the same number after it was read and before it is written. Who is refused
begins again at once, without the wait that ``retry`` has; optilock may also merge both additions
where they meet (``per_field(number=add_delta)``), in the same transaction. The other writer's time
does not count. At the end both numbers must be stored; without a version they are not.
"""

from __future__ import annotations

import functools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, select, update

from benchmarks.crowd import PAUSED, Crowd, Load, crowd
from benchmarks.loads import beside, interleaved, reset
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.by_sqlalchemy import engine_for
from benchmarks.stores.kinds import Kind, empty, fill, table_of
from benchmarks.stores.peers import PEERS, present
from benchmarks.stores.rows import Rows, Work
from benchmarks.table import CountLine, Line

__all__ = ["DATABASES", "Met", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

NUMBERS = Kind("bench_numbers", ("number",), ("note",))
_NATIVE = "native, retried at once"
_SUBJECTS = (
    "optilock, at once",
    "optilock, merged",
    _NATIVE,
    "unversioned",
    "Core, at once",
    "Django, at once",
    "peewee, at once",
)
_SHARES, _QUICK_SHARES = (0.0, 0.1, 0.5, 1.0), (0.0, 1.0)
_SECONDS, _QUICK_SECONDS = 1.0, 0.2


@dataclass(frozen=True)
class Met:
    """One is added, and in some units somebody else adds one first."""

    share: float
    #: The other writer's way to the database: past a delay.
    direct: str

    kinds = (NUMBERS,)

    def begin(self, connection: Connection) -> Counter[str]:
        empty(connection, NUMBERS)
        fill(connection, NUMBERS, 1, {"number": 0, "note": "note"})
        return Counter()

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        meets = chance.random() < self.share
        added: Counter[str] = Counter(number=1)

        def work(rows: Rows) -> Counter[str]:
            row = rows.edit(NUMBERS, 1)
            if meets and PAUSED not in added:  # an attempt that is run again is left in peace
                started = time.perf_counter_ns()
                _write(self.direct)
                added.update({"number": 1, PAUSED: time.perf_counter_ns() - started})
            rows.set(NUMBERS, row, number=row.number + 1)
            return added

        return work

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        stored = connection.scalar(select(func.sum(table_of(NUMBERS).c.number)))
        return Counter(lost=abs(added["number"] - int(stored or 0)))


@functools.cache
def _other(url: str) -> Engine:
    return engine_for(url)


def _write(url: str) -> None:
    table = table_of(NUMBERS)
    changed = {"number": table.c.number + 1, "version": table.c.version + 1}
    with _other(url).begin() as connection:
        connection.execute(update(table).values(changed))


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.others() as engine, crowd(place.url, 1) as writer:
        for share in _QUICK_SHARES if plan.quick else _SHARES:
            yield from _share(place, plan, engine, writer, share)


def _share(place: Place, plan: Plan, engine: Engine, writer: Crowd, share: float) -> Iterator[Line]:
    bench = Met(share, place.direct)
    reset(engine, bench)
    loads = interleaved(
        writer,
        engine,
        bench,
        present(place.name, plan.subjects, _SUBJECTS),
        writers=1,
        seconds=plan.seconds or (_QUICK_SECONDS if plan.quick else _SECONDS),
        rounds=plan.turns(),
    )
    question = f"{share:.0%} of the units in conflict"
    for name, turns in loads.items():
        if name != _NATIVE:
            asked = f"{question}: mean time"
            yield from beside(
                asked, place, 1, loads, name, against=_NATIVE, figure=_mean, at_least=False
            )
        lost = sum(turn.broken["lost"] for turn in turns)
        goal = 0 if PEERS[name].safe else None
        column = "unversioned" if name == "unversioned" else "optilock"
        yield CountLine(f"{question}: lost, {name}", place.label, 1, lost, goal, column)


def _mean(load: Load) -> float:
    return load.mean
