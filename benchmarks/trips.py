"""What do two round trips in place of four bring, on a socket, 1 ms and 5 ms away?

One row loaded, changed and committed, from opening the session to closing it: by a ``UnitOfWork``
as it is, and with ``pipelined=True``, against SQLAlchemy's own check, which runs a second time as
``native again``. The time of this process on its processors is compared as well. The pipelined unit
is also compared with the unit as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
#: Of the pipelined unit.
_GOALS: Mapping[str, float] = {"delayed": 0.60, "far": 0.53}
#: The same, against the unit as it is.
_NEAR: Mapping[str, float] = {"socket": 1.02}
#: So many units learn how far away the server is.
_WARMUP = 10
_UNPREPARED = {"prepare_threshold": None}


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    with place.engine() as engine:
        found = whole_units(engine)
        subjects = {name: found[name] for name in ("native", "UnitOfWork")}
        subjects["pipelined"] = Whole(_unit(sessionmaker(engine)))
        timings = interleave(
            {**subjects, _AGAIN: subjects["native"]},
            rounds=plan.rounds_for(SHORT),
            repeats=plan.repeats_for(place, 1),
            warmup=_WARMUP,
        )
    for name in ("UnitOfWork", "pipelined", _AGAIN):
        yield from compare(
            f"open to close, {name}",
            place.label,
            1,
            {"native": timings["native"], name: timings[name]},
            subject=name,
            goals={
                "load to COMMIT": _GOALS.get(place.name) if name == "pipelined" else None,
                "load to COMMIT, CPU": None,
            },
        )
    yield from compare(
        "open to close, pipelined",
        place.label,
        1,
        {name: timings[name] for name in ("UnitOfWork", "pipelined")},
        against="UnitOfWork",
        subject="pipelined",
        goals={"load to COMMIT": _NEAR.get(place.name), "load to COMMIT, CPU": None},
    )
    if place.name != "socket":  # what can be counted goes over TCP
        yield CountLine("pipelined: round trips", place.label, 1, _trips(place), goal=2)


def _unit(sessions: sessionmaker[Session]) -> Callable[[], None]:
    def unit() -> None:
        with UnitOfWork(sessions, pipelined=True) as session:
            rename(session, MODELS["optilock"][False])

    return unit


def _trips(place: Place) -> int:
    with wire(place.url) as line:
        engine = create_engine(line.url, connect_args=_UNPREPARED)
        unit = _unit(sessionmaker(engine))
        for _ in range(_WARMUP):  # the first connection asks the server for its version, and more
            unit()
        with line.counting() as trips:
            unit()
        engine.dispose()
    return trips.count
