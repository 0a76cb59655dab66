"""How late do open pages learn of a write, and what does that cost the unit that wrote?

``Changes`` follows a page for each of 200 rows, and each row is written twice, one unit after the
other: the delay is from the end of COMMIT to the event. PostgreSQL notifies by triggers; SQLite is
asked every 50 ms. The cost is that of a unit that changes one row, against the same unit without
``Changes``: while nobody follows a page, and with the triggers. ``tracemalloc`` follows what a
stream holds, without its connection.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.measure import Timing, interleave
from benchmarks.plan import MEDIUM, Plan
from benchmarks.servers import Place
from benchmarks.table import CountLine, Line, compare
from optilock import UnitOfWork, Versioned
from optilock.live import Changes

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "sqlite")

#: Of the rows of a plan: how many pages are open.
_PAGES = 5
_WRITES = 2
_POLL = 0.05
#: Units of one timing.
_REPEATS = 50
#: Microseconds.
_GOAL = 50_000


class Base(DeclarativeBase):
    pass


class Silent(Versioned, Base):
    __tablename__ = "live_silent"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(default=0)


class Notified(Versioned, Base):
    __tablename__ = "live_notified"
    __version_notify__ = True
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(default=0)


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    pages = max(1, plan.many // _PAGES)
    with place.engine() as engine, place.others() as others:
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            for model in (Silent, Notified):
                session.add_all(model(id=n) for n in range(1, plan.many + 1))
        delays, behind = asyncio.run(_followed(place, engine, others, pages))
        asked = "live: microseconds from COMMIT to the event"
        for name, value in (("median", 0.5), ("p95", 0.95)):
            micros = round(1e6 * _quantile(delays, value))
            goal = _GOAL if place.name == "socket" and name == "p95" else None
            yield CountLine(f"{asked}, {name}", place.label, pages, micros, goal=goal)
        yield CountLine("live: pages behind at the end", place.label, pages, behind, goal=0)
        held = asyncio.run(_held(place, engine, plan.many))
        yield CountLine("live: bytes of a stream", place.label, plan.many, held)
        yield from _costs(place, plan, engine)


def _changes(place: Place, engine: Engine) -> Changes:
    listens = place.url if engine.dialect.name == "postgresql" else None
    return Changes(engine, dsn=listens, poll=_POLL)


async def _followed(
    place: Place, engine: Engine, others: Engine, pages: int
) -> tuple[list[float], int]:
    """The delays of the events, and how many pages have not seen the last write of their row."""
    written: dict[tuple[int, int], float] = {}
    told: dict[tuple[int, int], float] = {}

    async def follow(key: int, events: AsyncIterator[bytes]) -> None:
        async for event in events:
            if b"data: " in event:
                tag = json.loads(event.partition(b"data: ")[2])["tag"]
                version = int(tag.strip('"').rpartition(".")[2])
                told[key, version] = time.perf_counter()
                if version == 1 + _WRITES:
                    return

    def write_all() -> None:
        for n in range(_WRITES * pages):
            key, version = n % pages + 1, n // pages + 2
            with UnitOfWork(others) as session:
                session.get_one(Notified, key).amount += 1
            written[key, version] = time.perf_counter()

    async with _changes(place, engine) as changes:
        tasks = []
        for key in range(1, pages + 1):
            events = aiter(await changes.stream(Notified, key, authorize=None))
            await anext(events)
            tasks.append(asyncio.create_task(follow(key, events)))
        await asyncio.to_thread(write_all)
        _, waiting = await asyncio.wait(tasks, timeout=10)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # An event that is sent while COMMIT returns is not late.
    return [max(0.0, at - written[one]) for one, at in told.items()], len(waiting)


def _quantile(delays: list[float], part: float) -> float:
    steps = statistics.quantiles(delays, n=100, method="inclusive") if delays[1:] else delays * 99
    return steps[round(100 * part) - 1]


async def _held(place: Place, engine: Engine, many: int) -> int:
    """The bytes that each of so many open streams holds."""
    async with _changes(place, engine) as changes, AsyncExitStack() as stack:
        opened = []
        for number in range(many + 1):
            if number == 1:  # the first one makes what is made once
                gc.collect()
                tracemalloc.start()
            events = aiter(await changes.stream(Notified, max(1, number), authorize=None))
            stack.push_async_callback(_closed, events)
            opened.append(events)
            await anext(events)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return held // many


async def _closed(events: AsyncIterator[bytes]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


def _costs(place: Place, plan: Plan, engine: Engine) -> Iterator[Line]:
    silent, notified = _unit(engine, Silent), _unit(engine, Notified)
    subjects = {"without": silent, "nobody follows": _beside(place, engine, silent)}
    if engine.dialect.name == "postgresql":
        subjects["triggers"] = notified
    timings = interleave(subjects, rounds=plan.rounds_for(MEDIUM))
    for name, goal in (("nobody follows", 1.02), ("triggers", None)):
        if name in subjects:
            yield from compare(
                f"live: {name}",
                place.label,
                1,
                {"without": timings["without"], name: timings[name]},
                subject=name,
                against="without",
                goals={"load to COMMIT": goal},
            )


def _unit(engine: Engine, model: type[Any]) -> Callable[[], Timing]:
    def units() -> Timing:
        started = time.perf_counter()
        for _ in range(_REPEATS):
            with UnitOfWork(engine) as session:
                session.get_one(model, 1).amount += 1
        return Timing(commit=time.perf_counter() - started)

    return units


def _beside(place: Place, engine: Engine, units: Callable[[], Timing]) -> Callable[[], Timing]:
    """The same units, in a thread of a process that runs ``Changes`` without a page."""

    async def both() -> Timing:
        async with _changes(place, engine):
            return await asyncio.to_thread(units)

    return lambda: asyncio.run(both())
