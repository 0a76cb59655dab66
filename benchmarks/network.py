"""How many round trips does work take, and what do 0, 1 and 5 ms of network make of it?

Round trips are counted on the way to the server, for every library that is compared: one row that
is read, changed and committed. Then one row and 1,000 rows of one flush, in time and in trips. For
each network the table says by how much its replies were late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, make_url

from benchmarks.crowd import Turn, crowd
from benchmarks.delay import Network, delayed
from benchmarks.loads import reset
from benchmarks.measure import interleave
from benchmarks.plan import LONG, MEDIUM, Plan
from benchmarks.servers import Place, through
from benchmarks.stores.kinds import Kind, empty, fill
from benchmarks.stores.peers import present
from benchmarks.stores.rows import Rows, Work
from benchmarks.subjects import Shape, build
from benchmarks.table import CountLine, Line, compare

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "mariadb")

NEAR = Kind("bench_near", ("number",), ("note",))
_DELAYS = (0.0, 0.001, 0.005)
_COLUMNS = ("native", "unversioned", "hand-written")


@dataclass(frozen=True)
class OneRow:
    """One row is read, changed, written."""

    kinds = (NEAR,)

    def begin(self, connection: Connection) -> Counter[str]:
        empty(connection, NEAR)
        fill(connection, NEAR, 1, {"number": 0, "note": "note"})
        return Counter()

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        def work(rows: Rows) -> Counter[str]:
            row = rows.edit(NEAR, 1)
            rows.set(NEAR, row, number=row.number + 1)
            return Counter(number=1)

        return work

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        return Counter()


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    server = make_url(place.tcp)
    for seconds in _DELAYS[1:2] if plan.quick else _DELAYS:
        with delayed(str(server.host), int(server.port or 0), seconds=seconds) as network:
            url = through(place.tcp, network.port)
            kind = place.label.partition(",")[0]
            near = replace(place, url=url, network=network)
            label = f"{kind}, {seconds * 1000:g} ms"
            if seconds == _DELAYS[1]:
                yield from _trips_of_one_row(near, plan, label, network)
            for rows in (1, plan.many // 10 if plan.quick else plan.many):
                yield from _flush(near, plan, label, network, rows)
            report = network.report()
            for name, value in (("median", report.median), ("p99", report.p99)):
                yield CountLine(f"replies too late, µs: {name}", label, 0, value)


def _trips_of_one_row(place: Place, plan: Plan, label: str, network: Network) -> Iterator[Line]:
    """Each subject's turn, long enough to be sure; the first one has made its statements."""
    bench = OneRow()
    with place.others() as engine, crowd(place.url, 1) as writer:
        reset(engine, bench)
        with engine.begin() as connection:
            bench.begin(connection)
        for name in present(place.name, plan.subjects):
            turn = Turn(name, bench, writers=1, seconds=0.1)
            writer.turn(turn)
            before = network.report().trips
            load = writer.turn(turn)
            trips = network.report().trips - before
            units = load.added["number"]
            column = name if name in _COLUMNS else "optilock"
            yield CountLine(
                f"one row, read, changed, committed: round trips, {name}",
                label,
                1,
                round(trips / units),
                subject=column,
            )


def _flush(place: Place, plan: Plan, label: str, network: Network, rows: int) -> Iterator[Line]:
    shape = Shape.ALTERNATING
    with place.engine() as engine:
        subjects = build(engine, rows, shape)
        # By far the longest is one trip for each row; the table is about the others as well.
        timings = interleave(
            subjects,
            rounds=plan.rounds_for(MEDIUM if rows == 1 else LONG),
            repeats=4 if rows == 1 else 1,
        )
        goals: Mapping[str, float | None] = {"load to COMMIT": None}
        yield from compare(shape.value, label, rows, timings, goals=goals)
        for name, subject in subjects.items():
            before = network.report().trips
            subject()
            trips = network.report().trips - before
            question = f"{shape.value}: round trips, load to COMMIT"
            yield CountLine(question, label, rows, trips, subject=name)
