"""What do two round trips in place of four bring, on a socket, 1 ms and 5 ms away?

One row loaded, changed and committed, from opening the session to closing it: by a ``UnitOfWork``
as it is, and with ``pipelined=True``, against SQLAlchemy's own check, which runs a second time as
``native again``. The time of this process on its processors is compared as well.

On a machine that is busy with other things, the process that makes the delay waits for its turn
with each packet, and its 1 ms are more: who takes fewer trips then looks better than it is.
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

#: Only psycopg's pipelines are used.
DATABASES = ("socket", "delayed", "far")

_AGAIN = "native again"
_GOALS: Mapping[str, float] = {"socket": 1.10, "delayed": 0.78, "far": 0.62}
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
        )
    for name in ("UnitOfWork", "pipelined", _AGAIN):
        goal = _GOALS[place.name] if name == "pipelined" else None
        yield from compare(
            f"open to close, {name}",
            place.label,
            1,
            {"native": timings["native"], name: timings[name]},
            subject=name,
            goals={"load to COMMIT": goal, "load to COMMIT, CPU": None},
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
        unit()  # the first connection asks the server for its version, and more
        with line.counting() as trips:
            unit()
        engine.dispose()
    return trips.count
