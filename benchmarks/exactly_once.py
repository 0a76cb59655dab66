"""What does ``exactly_once=`` cost, True and with a key, on a socket and 1 ms away?

One row loaded, changed and committed by a ``UnitOfWork``, from opening it to leaving it, against
the same unit without the option, which runs a second time as ``again``; on PostgreSQL pipelined,
and over asyncpg, as well. A key is new in each unit.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.measure import Timing, interleave
from benchmarks.models import MODELS, create
from benchmarks.plan import SHORT, Plan
from benchmarks.servers import Place
from benchmarks.subjects import Whole, rename
from benchmarks.table import CountLine, Line, compare
from optilock import AsyncUnitOfWork, UnitOfWork
from optilock.tables.names import commit_tokens
from optilock.testing import wire
from optilock.unit import set_trip_time

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "delayed", "sqlite", "mariadb")

_ROW = MODELS["optilock"][False]
_AGAIN = "again"
#: By database and driver: True, and a key.
_GOALS: Mapping[tuple[str, str], tuple[float | None, float | None]] = {
    ("socket", ""): (1.20, 1.80),
    ("socket", "pipelined"): (1.20, 1.80),
    ("socket", "asyncpg"): (1.25, None),
    ("delayed", ""): (1.05, 1.60),
    ("delayed", "pipelined"): (1.05, 1.60),
    ("delayed", "asyncpg"): (1.25, None),
    ("mariadb", ""): (1.20, 1.80),
}
#: Round trips without, with True, and with a key.
_TRIPS = {"": (4, 4, 5), "pipelined": (2, 2, 3)}
_keys = itertools.count()
#: Pipelined units take fewer round trips on a socket, too.
_FAR = 0.001


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    postgresql = place.name in ("socket", "delayed")
    for form in ("", "pipelined", "asyncpg") if postgresql else ("",):
        with _units(place, form) as units:
            subjects = {name: Whole(unit) for name, unit in units.items()}
            timings = interleave(
                {**subjects, _AGAIN: subjects["without"]},
                rounds=plan.rounds_for(SHORT),
                repeats=plan.repeats_for(place, 1),
            )
        yield from _lines(place, form, timings)
    if place.name == "delayed":  # what can be counted goes over TCP
        for form, goals in _TRIPS.items():
            for name, goal in zip(("without", "True", "key"), goals, strict=True):
                trips = _trips(place, form, name)
                line = _named(form, f"{name}: round trips")
                yield CountLine(line, place.label, 1, trips, goal=goal)


def _lines(place: Place, form: str, timings: Mapping[str, list[Timing]]) -> Iterator[Line]:
    goals = dict(zip(("True", "key"), _GOALS.get((place.name, form), (None, None)), strict=True))
    for name in ("True", "key", _AGAIN):
        yield from compare(
            _named(form, name),
            place.label,
            1,
            {"without": timings["without"], name: timings[name]},
            subject=name,
            against="without",
            goals={"load to COMMIT": goals.get(name)},
        )


def _named(form: str, name: str) -> str:
    return f"exactly_once, {form + ', ' if form else ''}{name}"


def _options(name: str, form: str) -> dict[str, Any]:
    once = {"without": False, "True": True, "key": f"key-{next(_keys)}"}[name]
    return {"exactly_once": once, **({"pipelined": True} if form == "pipelined" else {})}


@contextmanager
def _units(place: Place, form: str) -> Iterator[dict[str, Callable[[], None]]]:
    """A unit of each name."""
    with place.engine() as engine:
        _prepare(engine)
        if form != "asyncpg":
            sessions = sessionmaker(engine)
            set_trip_time(engine, _FAR)
            yield {name: _unit(sessions, name, form) for name in ("without", "True", "key")}
            return
    with asyncio.Runner() as runner:
        url = make_url(place.url).set(drivername="postgresql+asyncpg")
        made = create_async_engine(url.difference_update_query(["sslmode", "gssencmode"]))
        units = {name: _unit_async(made, name) for name in ("without", "True", "key")}
        yield {name: _run_in(runner, unit) for name, unit in units.items()}
        runner.run(made.dispose())


def _prepare(engine: Engine) -> None:
    create(engine, _ROW, 1)
    commit_tokens.drop(engine, checkfirst=True)
    commit_tokens.create(engine)


def _unit(sessions: sessionmaker[Session], name: str, form: str) -> Callable[[], None]:
    def unit() -> None:
        with UnitOfWork(sessions, **_options(name, form)) as session:
            rename(session, _ROW)

    return unit


def _unit_async(engine: Any, name: str) -> Callable[[], Any]:
    sessions = async_sessionmaker(engine)

    async def unit() -> None:
        async with AsyncUnitOfWork(sessions, **_options(name, "")) as session:
            await session.run_sync(rename, _ROW)

    return unit


def _run_in(runner: asyncio.Runner, unit: Callable[[], Any]) -> Callable[[], None]:
    return lambda: runner.run(unit())


def _trips(place: Place, form: str, name: str) -> int:
    with wire(place.url) as line:
        engine = create_engine(line.url, connect_args={"prepare_threshold": None})
        set_trip_time(engine, _FAR)
        unit = _unit(sessionmaker(engine), name, form)
        unit()  # the first connection asks the server for its version, and for the table
        with line.counting() as trips:
            unit()
        engine.dispose()
    return trips.count
