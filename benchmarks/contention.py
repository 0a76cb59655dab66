"""What do many writers of the same rows get done, and does each of them get his turn?

Processes read a row, add one to a number, and write it: all the same row; rows chosen by the zipf
distribution (0.99) of YCSB; the same row, which is another one every five seconds; and two rows,
which half of the writers take in the opposite order. With no time between reading and writing, and
with 5 ms. Whoever is refused begins again until it is stored. At the end the numbers are compared
with what was reported as stored.
"""

from __future__ import annotations

import enum
import functools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, select

from benchmarks.crowd import Crowd, crowd
from benchmarks.loads import against_locks, beside, interleaved, load_lines, reset
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.kinds import Kind, empty, fill, table_of
from benchmarks.stores.peers import LOCKING, PEERS, present
from benchmarks.stores.rows import Raise, Rows, Work
from benchmarks.table import Line
from benchmarks.zipf import Zipf

__all__ = ["DATABASES", "Increments", "Spread", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

COUNTERS = Kind("bench_counters", ("number",), ("note",))
_ROWS = 1_000
_WRITERS = (1, 2, 4, 8, 16)
_MANY = 8
_THINK = 0.005
#: Seconds until another row is the hot one, and how many of these a turn has.
_PERIOD, _PERIODS = 5.0, 2
_SECONDS = 1.5
_QUICK_SECONDS = 0.25
#: Turns of ten seconds are for a few.
_OF_THE_MOVING = (
    *(name for name, peer in PEERS.items() if peer.own),
    LOCKING,
    "native, retried",
    "hand-written",
)
#: Increments that commute, against SELECT FOR UPDATE.
_COMMUTATIVE, _COMMUTING = "optilock, commutative", 1.5
_ADDING = (_COMMUTATIVE, f"{_COMMUTATIVE}, pipelined")


class Spread(enum.Enum):
    """Which rows the writers want."""

    HOT = "hot row"
    ZIPF = "zipf 0.99"
    MOVING = "hot row that moves"
    OPPOSITE = "two rows in opposite orders"


@dataclass(frozen=True)
class Increments:
    """Read a row, add one, write it."""

    spread: Spread
    rows: int = _ROWS
    #: Seconds between reading and writing.
    think: float = 0.0
    period: float = _PERIOD

    kinds = (COUNTERS,)

    def begin(self, connection: Connection) -> Counter[str]:
        empty(connection, COUNTERS)
        fill(connection, COUNTERS, self.rows, {"number": 0, "note": "note"})
        return Counter()

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        keys = self._keys(chance, writer, seconds)

        def work(rows: Rows) -> Counter[str]:
            found = [rows.edit(COUNTERS, key) for key in keys]
            if self.think:
                time.sleep(self.think)
            for row in found:
                rows.set(COUNTERS, row, number=row.number + 1)
            return Counter(number=len(found))

        return work

    def _keys(self, chance: random.Random, writer: int, seconds: float) -> Sequence[int]:
        if self.spread is Spread.HOT:
            return (1,)
        if self.spread is Spread.ZIPF:
            return (_zipf(self.rows).key(chance),)
        if self.spread is Spread.MOVING:
            return (int(seconds / self.period) % self.rows + 1,)
        return (1, 2) if writer % 2 else (2, 1)

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        stored = connection.scalar(select(func.sum(table_of(COUNTERS).c.number)))
        return Counter(lost=abs(added["number"] - int(stored or 0)))


@dataclass(frozen=True)
class Raised(Increments):
    """The same number, by an addition that the library may leave to the database."""

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        keys = self._keys(chance, writer, seconds)

        def work(rows: Rows) -> Counter[str]:
            rows.raise_by(*(Raise(COUNTERS, key, "number", 1) for key in keys))
            return Counter(number=len(keys))

        return work


@functools.cache
def _zipf(rows: int) -> Zipf:
    return Zipf(rows)


@dataclass(frozen=True)
class Case:
    """What is compared, by how many writers, for how long."""

    question: str
    bench: Increments
    writers: Sequence[int]
    seconds: float
    #: Without them, all that there are.
    subjects: Sequence[str] = ()


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    cases = list(_cases(plan))
    subjects = present(place.name, plan.subjects)
    most = max(max(case.writers) for case in cases)
    with place.others() as engine, crowd(place.url, most) as writers:
        reset(engine, cases[0].bench)
        for case in cases:
            yield from _case(place, plan, engine, writers, case, subjects)


def _cases(plan: Plan) -> Iterator[Case]:
    seconds = plan.seconds or (_QUICK_SECONDS if plan.quick else _SECONDS)
    some: Sequence[int] = (_MANY // 2,) if plan.quick else (_MANY,)
    if plan.writers:
        some = (_MANY,) if _MANY in plan.writers else plan.writers[-1:]
    all_of = plan.writers or (some if plan.quick else _WRITERS)
    rows = min(_ROWS, plan.many)
    for spread in (Spread.HOT, Spread.ZIPF):
        yield Case(spread.value, Increments(spread, rows), all_of, seconds)
    yield Case("increments of a hot row", Raised(Spread.HOT, rows), some, seconds)
    opposite = Increments(Spread.OPPOSITE, rows)
    yield Case(Spread.OPPOSITE.value, opposite, some, seconds)
    if plan.quick:
        return
    for spread in (Spread.HOT, Spread.ZIPF):
        bench = Increments(spread, rows, think=_THINK)
        yield Case(f"{spread.value}, {_THINK * 1000:g} ms of thought", bench, some, seconds)
    period = min(_PERIOD, _PERIOD * (plan.seconds or 1))
    moving = Increments(Spread.MOVING, rows, period=period)
    yield Case(Spread.MOVING.value, moving, some, _PERIODS * period, _OF_THE_MOVING)


def _case(
    place: Place,
    plan: Plan,
    engine: Engine,
    crowd: Crowd,
    case: Case,
    subjects: Sequence[str],
) -> Iterator[Line]:
    named = [name for name in subjects if name in (case.subjects or subjects)]
    if isinstance(case.bench, Raised):
        named += present(place.name, plan.subjects, among=_ADDING)
    for writers in case.writers:
        loads = interleaved(
            crowd,
            engine,
            case.bench,
            named,
            writers=writers,
            seconds=case.seconds,
            rounds=plan.turns(),
        )
        yield from load_lines(case.question, place, writers, loads, LOCKING)
        if isinstance(case.bench, Raised):
            question = f"{case.question}: units/s"
            yield from beside(question, place, writers, loads, _COMMUTATIVE, goal=_COMMUTING)
        elif case.bench.think == 0 and case.bench.spread in (Spread.HOT, Spread.ZIPF):
            yield from against_locks(case.question, place, writers, loads)
