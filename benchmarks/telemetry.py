"""What do traces, metrics and logs cost a unit that changes one row in memory?

One row loaded, changed and committed by a ``UnitOfWork``, from opening it to leaving it, against
the same unit with telemetry off, which runs a second time as ``again``. Spans and points stay in
the process: nothing is exported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from benchmarks.measure import Subject, Timing, interleave
from benchmarks.models import MODELS, create
from benchmarks.plan import SHORT, Plan
from benchmarks.servers import Place
from benchmarks.subjects import Whole, rename
from benchmarks.table import Line, compare
from optilock import UnitOfWork
from optilock.telemetry import logs, opentelemetry, prometheus

__all__ = ["DATABASES", "run"]

DATABASES = ("sqlite",)

#: Units of one timing.
_REPEATS = 100
_ROW = MODELS["optilock"][False]
_GOALS: Mapping[str, float | None] = {
    "logs, off by level": 1.08,
    "Prometheus": 1.08,
    "OpenTelemetry metrics": 1.08,
    "OpenTelemetry metrics and spans": 1.5,
    "again": None,
}


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question; the database is in memory."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    create(engine, _ROW, 1)
    unit = _unit(sessionmaker(engine))
    switches = _switches()
    subjects = {name: _with(unit, *switch) for name, switch in switches.items()}
    timings = interleave(subjects, rounds=plan.rounds_for(SHORT))
    for name, goal in _GOALS.items():
        yield from compare(
            f"telemetry: {name}",
            "SQLite in memory",
            1,
            {"off": timings["off"], name: timings[name]},
            subject=name,
            against="off",
            goals={"load to COMMIT, CPU": goal},
        )
    engine.dispose()


def _unit(sessions: sessionmaker[Session]) -> Callable[[], None]:
    def unit() -> None:
        with UnitOfWork(sessions) as session:
            rename(session, _ROW)

    return unit


Switch = tuple[Callable[[], None], Callable[[], None]]


def _switches() -> dict[str, Switch]:
    """How each kind of telemetry is switched on and off."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    given: Any = {
        "tracer_provider": TracerProvider(),
        "meter_provider": MeterProvider([InMemoryMetricReader()]),
    }
    registry = CollectorRegistry()
    logging.getLogger("optilock.events").setLevel(logging.WARNING)
    off = opentelemetry.uninstrument
    return {
        "off": (_nothing, _nothing),
        "again": (_nothing, _nothing),
        "logs, off by level": (logs.instrument, logs.uninstrument),
        "Prometheus": (lambda: prometheus.instrument(registry), prometheus.uninstrument),
        "OpenTelemetry metrics": (lambda: opentelemetry.instrument(**given, spans=False), off),
        "OpenTelemetry metrics and spans": (lambda: opentelemetry.instrument(**given), off),
    }


def _nothing() -> None:
    pass


def _with(unit: Callable[[], None], on: Callable[[], None], off: Callable[[], None]) -> Subject:
    timed = Whole(unit)

    def subject() -> Timing:
        on()
        unit()  # the first one makes what is made once
        try:
            return sum((timed() for _ in range(_REPEATS)), Timing())
        finally:
            off()

    return subject
