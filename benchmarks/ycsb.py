"""How does YCSB-A go, with read-modify-write?

The workload A of the Yahoo! Cloud Serving Benchmark: half of the units read a row, half read it,
change one of its ten fields and write it; rows are chosen by zipf 0.99. Each write also adds one to
a number, so that a lost update is seen: at the end the numbers are as many as the writes.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from benchmarks.loads import standard
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.kinds import Kind, empty, fill, table_of
from benchmarks.stores.rows import Look, Rows, Work
from benchmarks.table import Line
from benchmarks.zipf import Zipf

__all__ = ["DATABASES", "YcsbA", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

_FIELDS = tuple(f"field{number}" for number in range(10))
USERS = Kind("bench_users", ("number",), _FIELDS)
_ROWS, _QUICK_ROWS = 10_000, 1_000
_LENGTH = 100
_READS = 0.5


@dataclass(frozen=True)
class YcsbA:
    """Reads, and writes of one field."""

    rows: int = _ROWS

    kinds = (USERS,)

    def begin(self, connection: Connection) -> Counter[str]:
        empty(connection, USERS)
        fill(connection, USERS, self.rows, {"number": 0, **dict.fromkeys(_FIELDS, "x" * _LENGTH)})
        return Counter()

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        key = _zipf(self.rows).key(chance)
        if chance.random() < _READS:
            return Look(lambda rows: _read(rows, key))
        field = chance.choice(_FIELDS)
        value = f"{chance.getrandbits(4 * _LENGTH):0{_LENGTH}x}"
        return lambda rows: _write(rows, key, field, value)

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        stored = connection.scalar(select(func.sum(table_of(USERS).c.number)))
        return Counter(lost=abs(added["writes"] - int(stored or 0)))


def _read(rows: Rows, key: int) -> Counter[str]:
    row = rows.read(USERS, key)
    return Counter(characters=len(row.field0))


def _write(rows: Rows, key: int, field: str, value: str) -> Counter[str]:
    row = rows.edit(USERS, key)
    rows.set(USERS, row, number=row.number + 1, **{field: value})
    return Counter(writes=1)


@functools.cache
def _zipf(rows: int) -> Zipf:
    return Zipf(rows)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    bench = YcsbA(_QUICK_ROWS if plan.quick else _ROWS)
    yield from standard("YCSB-A", bench, place, plan)
