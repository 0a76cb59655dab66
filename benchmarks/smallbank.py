"""How does SmallBank go, and is the money all there?

The bank of SmallBank: each customer has savings and a checking account. A unit asks for the
balance, deposits, withdraws from the savings, writes a check, sends money to another customer or
moves all that one has to another; nine of ten are about ten customers of a thousand. One rule is
stricter than in the original, so that it can be checked: whatever would leave a customer with less
than nothing, both accounts together, is refused (the original lets a check through, for a fee).
At the end the bank must have what it had and what was brought and taken (``lost``), and no
customer may have less than nothing (``broken``): the write skew of two withdrawals that each have
seen enough on the other account.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from benchmarks.loads import standard
from benchmarks.plan import Plan
from benchmarks.servers import Place
from benchmarks.stores.kinds import Kind, empty, fill, table_of
from benchmarks.stores.rows import Look, Rows, Work
from benchmarks.table import Line

__all__ = ["DATABASES", "SmallBank", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

SAVINGS = Kind("bench_savings", ("balance",))
CHECKING = Kind("bench_checking", ("balance",))
_CUSTOMERS, _HOT, _OF_THE_HOT = 1_000, 10, 0.9
_BALANCE, _MOST = 100, 60


@dataclass(frozen=True)
class SmallBank:
    """The six kinds of unit."""

    customers: int = _CUSTOMERS
    hot: int = _HOT

    kinds = (SAVINGS, CHECKING)

    def begin(self, connection: Connection) -> Counter[str]:
        for kind in self.kinds:
            empty(connection, kind)
            fill(connection, kind, self.customers, {"balance": _BALANCE})
        return Counter(money=2 * _BALANCE * self.customers)

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        (what,) = chance.choices(_UNITS, _WEIGHTS)
        hot = chance.random() < _OF_THE_HOT
        one, other = chance.sample(range(1, (self.hot if hot else self.customers) + 1), 2)
        amount = chance.randint(1, _MOST)

        def work(rows: Rows) -> Counter[str]:
            return Counter(money=what(rows, one, other, amount))

        return Look(work) if what is _balance else work

    def broken(
        self, connection: Connection, before: Counter[str], added: Counter[str]
    ) -> Counter[str]:
        savings, checking = table_of(SAVINGS), table_of(CHECKING)
        both = savings.c.balance + checking.c.balance
        joined = savings.join(checking, savings.c.id == checking.c.id)
        money = connection.scalar(select(func.sum(both)).select_from(joined))
        poor = connection.scalar(select(func.count()).select_from(joined).where(both < 0))
        wanted = before["money"] + added["money"]
        return Counter(lost=abs(wanted - int(money or 0)), overdrawn=int(poor or 0))


# Rows are asked for in one order, customer by customer and savings first: who locks, locks so.


def _balance(rows: Rows, one: int, other: int, amount: int) -> int:
    rows.read(SAVINGS, one)
    rows.read(CHECKING, one)
    return 0


def _deposit(rows: Rows, one: int, other: int, amount: int) -> int:
    row = rows.edit(CHECKING, one)
    rows.set(CHECKING, row, balance=row.balance + amount)
    return amount


def _save(rows: Rows, one: int, other: int, amount: int) -> int:
    row = rows.edit(SAVINGS, one)
    rows.set(SAVINGS, row, balance=row.balance + amount)
    return amount


def _withdraw(rows: Rows, one: int, other: int, amount: int) -> int:
    """From the savings, as long as both accounts together have it."""
    row = rows.edit(SAVINGS, one)
    if row.balance + rows.sure(CHECKING, one).balance < amount:
        return 0
    rows.set(SAVINGS, row, balance=row.balance - amount)
    return -amount


def _write_check(rows: Rows, one: int, other: int, amount: int) -> int:
    savings = rows.sure(SAVINGS, one)
    row = rows.edit(CHECKING, one)
    if savings.balance + row.balance < amount:
        return 0
    rows.set(CHECKING, row, balance=row.balance - amount)
    return -amount


def _send(rows: Rows, one: int, other: int, amount: int) -> int:
    """From one checking account to another."""
    savings: Any = None
    checking: dict[int, Any] = {}
    for customer in sorted((one, other)):
        if customer == one:
            savings = rows.sure(SAVINGS, one)
        checking[customer] = rows.edit(CHECKING, customer)
    giver, taker = checking[one], checking[other]
    if savings.balance + giver.balance >= amount:
        rows.set(CHECKING, giver, balance=giver.balance - amount)
        rows.set(CHECKING, taker, balance=taker.balance + amount)
    return 0


def _amalgamate(rows: Rows, one: int, other: int, amount: int) -> int:
    """All that one has, to the other's checking account."""
    savings: Any = None
    checking: dict[int, Any] = {}
    for customer in sorted((one, other)):
        if customer == one:
            savings = rows.sure(SAVINGS, one)
        checking[customer] = rows.sure(CHECKING, customer)
    giver, taker = checking[one], checking[other]
    rows.set(CHECKING, taker, balance=taker.balance + savings.balance + giver.balance)
    rows.set(SAVINGS, savings, balance=0)
    rows.set(CHECKING, giver, balance=0)
    return 0


#: As often as in the original, where the withdrawals are those of half of its TransactSavings.
_UNITS = (_balance, _deposit, _save, _withdraw, _write_check, _send, _amalgamate)
_WEIGHTS = (15, 15, 7.5, 7.5, 15, 25, 15)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    yield from standard("SmallBank", SmallBank(), place, plan)
