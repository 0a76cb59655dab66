"""One run: increments by one driver, in one mode, over a line that is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from checks.exactly_once.cut_commits import Choose, CommitCutter
from optilock import is_transient, retrying, unit_of_work
from optilock.errors import CommitOutcomeUnknown
from optilock.exactly_once import questions
from optilock.tables.names import commit_tokens
from optilock.unit import set_trip_time
from tests.support.models import Account

__all__ = ["DRIVERS", "MODES", "Outcome", "count", "options", "prepare", "run"]

#: What is named on the command line -> the driver of the URL, and whether it is async.
DRIVERS = {
    "psycopg": ("postgresql+psycopg", False),
    "psycopg-async": ("postgresql+psycopg", True),
    "asyncpg": ("postgresql+asyncpg", True),
    "pymysql": ("mysql+pymysql", False),
    "asyncmy": ("mysql+asyncmy", True),
}
#: Pipelined units take fewer round trips from the first one on.
FAR = 0.001
MODES = ("true", "key", "pipelined", "naive", "unfenced")


@dataclass(frozen=True)
class Outcome:
    """What a run has done."""

    wanted: int
    counter: int
    cuts: dict[str, int]
    bodies: int
    fences: int
    results: tuple[int, ...]

    @property
    def is_right(self) -> bool:
        """Each increment was stored once, and its caller was given its own result."""
        return self.counter == self.wanted and [*self.results] == [*range(1, self.wanted + 1)]


def run(
    direct: Engine,
    driver: str,
    mode: str,
    increments: int,
    choose: Choose,
    *,
    through: URL | None = None,
    **cutter: Any,
) -> Outcome:
    """Set the counter to 0, increase it over a line that ``choose`` cuts, and look.

    ``through``: the line leads to a pooler in front of the database.
    """
    prepare(direct)
    name, asynchronous = DRIVERS[driver]
    url = (through or direct.url).set(drivername=name)
    url = url.difference_update_query(["ssl_disabled"])  # asyncmy has no such option
    line = CommitCutter(url, choose, **cutter)
    bodies: list[int] = []
    try:
        with _question(mode):
            go = _run_async if asynchronous else _run_sync
            results = go(line.url, mode, increments, bodies)
    finally:
        line.close()
    counter, fences = count(direct)
    return Outcome(increments, counter, dict(line.cuts), len(bodies), fences, tuple(results))


def count(direct: Engine) -> tuple[int, int]:
    """The counter, and how many fences there are."""
    with direct.connect() as connection:
        fences = select(func.count()).where(commit_tokens.c.fingerprint == "fence")
        counter = connection.scalar(select(Account.balance).where(Account.id == 1))
        return counter or 0, connection.scalar(fences) or 0


def prepare(direct: Engine) -> None:
    Account.__table__.create(direct, checkfirst=True)
    commit_tokens.create(direct, checkfirst=True)
    with sessionmaker(direct).begin() as session:
        session.execute(commit_tokens.delete())
        session.execute(Account.__table__.delete())
        session.add(Account(id=1, owner="Ada", balance=0))


def options(mode: str, attempts: int = 30) -> dict[str, Any]:
    """The options of ``unit_of_work`` in this mode; a key is made of the first argument."""
    waits: dict[str, Any] = {"attempts": attempts, "wait_initial": 0.002, "wait_max": 0.1}
    if mode == "naive":
        waits["on"] = lambda e: is_transient(e) or isinstance(e, CommitOutcomeUnknown)
        return {"retry": retrying(**waits)}
    usual = {"retry": retrying(**waits)}
    if mode == "key":
        return {**usual, "exactly_once": lambda number: f"increment-{number}"}
    return {**usual, "exactly_once": True, "pipelined": mode == "pipelined"}


@contextmanager
def _question(mode: str) -> Iterator[None]:
    """In the broken mode every question is rolled back."""
    usual = questions.leaves_fence
    if mode == "unfenced":
        questions.leaves_fence = lambda token: False
    try:
        yield
    finally:
        questions.leaves_fence = usual


def _connecting(url: URL) -> dict[str, Any]:
    """A pooler has no statements that were prepared on another connection."""
    return {"prepare_threshold": None} if url.drivername == "postgresql+psycopg" else {}


def _run_sync(url: URL, mode: str, increments: int, bodies: list[int]) -> list[int]:
    engine = create_engine(url, pool_size=1, max_overflow=0, connect_args=_connecting(url))
    set_trip_time(engine, FAR)

    @unit_of_work(sessionmaker(engine), **options(mode))
    def increase(session: Any, number: int) -> int:
        bodies.append(number)
        account = session.get_one(Account, 1)
        account.balance += 1
        return int(account.balance)

    try:
        return [increase(number) for number in range(increments)]
    finally:
        engine.dispose()


def _run_async(url: URL, mode: str, increments: int, bodies: list[int]) -> list[int]:
    async def go() -> list[int]:
        engine = create_async_engine(
            url, pool_size=1, max_overflow=0, connect_args=_connecting(url)
        )
        set_trip_time(engine, FAR)

        @unit_of_work(async_sessionmaker(engine), **options(mode))
        async def increase(session: Any, number: int) -> int:
            bodies.append(number)
            account = await session.get_one(Account, 1)
            account.balance += 1
            return int(account.balance)

        try:
            return [await increase(number) for number in range(increments)]
        finally:
            await engine.dispose()

    return asyncio.run(go())
