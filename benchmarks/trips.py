"""What do two round trips in place of four bring, on a socket, 1 ms and 5 ms away?

One row loaded, changed and committed, from opening the session to closing it: by a ``UnitOfWork``
as it is, with ``pipelined=True`` and with ``pipelined="auto"``, against SQLAlchemy's own check,
which runs a second time as ``native again``. The time of this process on its processors is compared
as well. ``"auto"`` is also compared with the unit as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.measure import interleave
from benchmarks.models import MODELS
from benchmarks.plan import SHORT, Plan
from benchmarks.servers import Place
from benchmarks.subjects import Whole, rename, whole_units
from benchmarks.table import CountLine, Line, compare
from optilock import UnitOfWork
from optilock.testing import wire

__all__ = ["DATABASES", "run"]

#: Pipelines are psycopg's.
DATABASES = ("socket", "delayed", "far")

_AGAIN = "native again"
_WAYS: Mapping[str, Mapping[str, Any]] = {
    "pipelined": {"pipelined": True},
    "auto": {"pipelined": "auto"},
}
_GOALS: Mapping[str, Mapping[str, float]] = {
    "socket": {"pipelined": 1.10},
    "delayed": {"pipelined": 0.78, "auto": 0.60},
    "far": {"pipelined": 0.62, "auto": 0.53},
}
#: Of "auto" against the unit as it is.
_NEAR: Mapping[str, float] = {"socket": 1.02}
#: So many units learn how far away the server is.
_WARMUP = 10
_UNPREPARED = {"prepare_threshold": None}


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        found = whole_units(engine)
        subjects = {name: found[name] for name in ("native", "UnitOfWork")}
        for name, options in _WAYS.items():
            subjects[name] = Whole(_unit(sessionmaker(engine), options))
        timings = interleave(
            {**subjects, _AGAIN: subjects["native"]},
            rounds=plan.rounds_for(SHORT),
            repeats=plan.repeats_for(place, 1),
            warmup=_WARMUP,
        )
    for name in ("UnitOfWork", *_WAYS, _AGAIN):
        yield from compare(
            f"open to close, {name}",
            place.label,
            1,
            {"native": timings["native"], name: timings[name]},
            subject=name,
            goals={"load to COMMIT": _GOALS[place.name].get(name), "load to COMMIT, CPU": None},
        )
    yield from compare(
        "open to close, auto",
        place.label,
        1,
        {name: timings[name] for name in ("UnitOfWork", "auto")},
        against="UnitOfWork",
        subject="auto",
        goals={"load to COMMIT": _NEAR.get(place.name), "load to COMMIT, CPU": None},
    )
    if place.name != "socket":  # what can be counted goes over TCP
        for name, options in _WAYS.items():
            trips = _trips(place, options)
            yield CountLine(f"{name}: round trips", place.label, 1, trips, goal=2)


def _unit(sessions: sessionmaker[Session], options: Mapping[str, Any]) -> Callable[[], None]:
    def unit() -> None:
        with UnitOfWork(sessions, **options) as session:
            rename(session, MODELS["optilock"][False])

    return unit


def _trips(place: Place, options: Mapping[str, Any]) -> int:
    with wire(place.url) as line:
        engine = create_engine(line.url, connect_args=_UNPREPARED)
        unit = _unit(sessionmaker(engine), options)
        for _ in range(_WARMUP):  # the first connection asks the server for its version, and more
            unit()
        with line.counting() as trips:
            unit()
        engine.dispose()
    return trips.count
