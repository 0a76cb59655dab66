"""What do isolation levels cost, beside versions?

A unit reads five rows of a hundred, on which its decision depends, and writes one of them; alone,
and with eight writers. Versions alone see a lost update; that no other of the five has moved is
promised by ``verify`` of each row, by ``verify_reads=True``, by REPEATABLE READ of MariaDB and
SQLite in a unit, by SERIALIZABLE, and by a lock on each row.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from benchmarks.crowd import crowd
from benchmarks.loads import interleaved, load_lines, reset
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.kinds import Kind, empty, fill, table_of
from benchmarks.stores.peers import present
from benchmarks.stores.rows import Rows, Work
from benchmarks.table import Line

__all__ = ["DATABASES", "Decisions", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

POOL = Kind("bench_pool", ("number",), ("note",))
_ROWS, _READ = 100, 5
_WRITERS, _QUICK_WRITERS = (1, 8), (2,)
_SECONDS, _QUICK_SECONDS = 2.0, 0.25
_NATIVE = "native, retried"
_SUBJECTS = (
    "optilock",
    "optilock, optimistic",
    "optilock, verify_reads",
    "optilock, REPEATABLE READ",
    "optilock, SERIALIZABLE",
    _NATIVE,
    "REPEATABLE READ, retried",
    "SERIALIZABLE, retried",
    "SELECT FOR UPDATE",
)


@dataclass(frozen=True)
class Decisions:
    """Read some rows, write one of them; ``sure``: the others may not have moved."""

    sure: bool

    kinds = (POOL,)

    def begin(self, connection: Connection) -> Counter[str]:
        empty(connection, POOL)
        fill(connection, POOL, _ROWS, {"number": 0, "note": "note"})
        return Counter()

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        keys = chance.sample(range(1, _ROWS + 1), _READ)
        written = keys[0]

        def work(rows: Rows) -> Counter[str]:
            look = rows.sure if self.sure else rows.read
            found = {
                key: rows.edit(POOL, key) if key == written else look(POOL, key)
                for key in sorted(keys)
            }
            rows.set(POOL, found[written], number=found[written].number + 1)
            return Counter(number=1)

        return work

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        stored = connection.scalar(select(func.sum(table_of(POOL).c.number)))
        return Counter(lost=abs(added["number"] - int(stored or 0)))


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    subjects = present(place.name, plan.subjects, _SUBJECTS)
    many = plan.writers or (_QUICK_WRITERS if plan.quick else _WRITERS)
    with place.others() as engine, crowd(place.url, max(many)) as writers:
        reset(engine, Decisions(True))
        for sure in (False, True):
            for count in many:
                loads = interleaved(
                    writers,
                    engine,
                    Decisions(sure),
                    subjects,
                    writers=count,
                    seconds=plan.seconds or (_QUICK_SECONDS if plan.quick else _SECONDS),
                    rounds=plan.turns(),
                )
                question = "5 rows read, one written" + ", the others verified" * sure
                yield from load_lines(question, place, count, loads, _NATIVE)
