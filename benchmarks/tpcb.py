"""How does a TPC-B like workload go, beside pgbench?

A unit books an amount on an account, a teller and a branch, reads what is on the account, and
writes a row of the history. ``pgbench`` does the same on tables of its own and of the same size, in
C: its own script, with one UPDATE for each booking, in its simple and in its prepared protocol. The
sums of accounts, tellers and branches must be what was booked, and the history must have a row for
each unit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from benchmarks.loads import Others, standard
from benchmarks.pgbench import pgbench
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.kinds import Kind, empty, fill, table_of
from benchmarks.stores.rows import Raise, Rows, Work
from benchmarks.table import Line

__all__ = ["DATABASES", "TpcB", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

BRANCHES = Kind("bench_branches", ("balance",))
TELLERS = Kind("bench_tellers", ("balance",))
ACCOUNTS = Kind("bench_accounts", ("balance",), ("filler",))
HISTORY = Kind("bench_history", ("teller", "branch", "account", "delta"), versioned=False)
_SCALE, _QUICK_SCALE = 10, 1
#: Of one branch, as pgbench has them.
_TELLERS, _ACCOUNTS = 10, 100_000
_MOST = 5_000
_BOOKED = (BRANCHES, TELLERS, ACCOUNTS)


@dataclass(frozen=True)
class TpcB:
    """Bookings on so many branches."""

    scale: int = _SCALE
    accounts: int = _ACCOUNTS

    kinds = (*_BOOKED, HISTORY)

    def begin(self, connection: Connection) -> Counter[str]:
        if connection.scalar(select(func.count()).select_from(table_of(BRANCHES))) == 0:
            fill(connection, BRANCHES, self.scale, {"balance": 0})
            fill(connection, TELLERS, self.scale * _TELLERS, {"balance": 0})
            accounts = self.scale * self.accounts
            fill(connection, ACCOUNTS, accounts, {"balance": 0, "filler": "x" * 84})
        # A million rows are not made for each turn: what a turn finds is what it is compared with.
        empty(connection, HISTORY)
        return _sums(connection)

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        branch = chance.randint(1, self.scale)
        teller = chance.randint(1, self.scale * _TELLERS)
        account = chance.randint(1, self.scale * self.accounts)
        delta = chance.randint(-_MOST, _MOST)

        def work(rows: Rows) -> Counter[str]:
            rows.raise_by(
                Raise(ACCOUNTS, account, "balance", delta),
                Raise(TELLERS, teller, "balance", delta),
                Raise(BRANCHES, branch, "balance", delta),
            )
            rows.add(HISTORY, teller=teller, branch=branch, account=account, delta=delta)
            rows.read(ACCOUNTS, account)
            return Counter(bookings=1, money=delta)

        return work

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        found = _sums(connection)
        grown = {kind.name: found[kind.name] - before[kind.name] for kind in _BOOKED}
        lost = sum(sum_of != added["money"] for sum_of in grown.values())
        return Counter(lost=lost, history=abs(found["rows"] - added["bookings"]))


def _sums(connection: Connection) -> Counter[str]:
    sums: Counter[str] = Counter()
    for kind in _BOOKED:
        sums[kind.name] = int(connection.scalar(select(func.sum(table_of(kind).c.balance))) or 0)
    rows = select(func.count()).select_from(table_of(HISTORY))
    sums["rows"] = int(connection.scalar(rows) or 0)
    return sums


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    bench = TpcB(_QUICK_SCALE if plan.quick else _SCALE, min(_ACCOUNTS, plan.many * 100))
    others: Others = {}
    if place.tcp.startswith("postgresql"):
        others = pgbench(place, bench.scale)
    yield from standard("TPC-B like", bench, place, plan, others=others)
