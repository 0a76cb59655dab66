"""Spans, metrics and logs of units: what they have, and what they never have."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, Counter, generate_latest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConfigurationError,
    UnitOfWork,
    Versioned,
    client_wins,
    events,
    retrying,
    unit_of_work,
)
from optilock.telemetry import logs, opentelemetry, prometheus
from optilock.unit import parts
from tests.support.work import calls_of

SECRET = "hunter2"


class Base(DeclarativeBase):
    pass


class Safe(Versioned, Base):
    __tablename__ = "telemetry_safes"
    id: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(default="")


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/safes.db")
    Base.metadata.create_all(made)
    with Session(made) as session, session.begin():
        session.add(Safe(id=SECRET))
    yield made
    made.dispose()


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    for one in (opentelemetry, prometheus, logs):
        one.uninstrument()
    assert (events.listeners, parts.standing) == ((), ())


def conflict(engine: Engine, session: Session, code: str) -> None:
    """Another session writes the row between our read and our write."""
    safe = session.get_one(Safe, SECRET)
    with Session(engine) as other, other.begin():
        other.get_one(Safe, SECRET).code = f"{SECRET} of {code}"
    safe.code = f"{SECRET} {code}"


def work(engine: Engine) -> None:
    """One conflict is settled, one unit runs again, and one fails."""
    sessions = sessionmaker(engine)
    with UnitOfWork(sessions, on_conflict=client_wins) as session:
        conflict(engine, session, "first")
    runs = []

    @unit_of_work(sessions, retry=retrying(wait_initial=0), strategy="optimistic")
    def change(session: Session) -> None:
        runs.append(session)
        if len(runs) == 1:
            conflict(engine, session, "second")

    change()
    with pytest.raises(LookupError), UnitOfWork(sessions):
        raise LookupError(SECRET)


# -- OpenTelemetry ---------------------------------------------------------------------------------


class Telemetry:
    """Providers that keep what they get in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.providers: Any = {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        data: Any = self.reader.get_metrics_data()
        found = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            found[metric.name] = [
                (dict(point.attributes), getattr(point, "count", None) or point.value)
                for point in metric.data.data_points
            ]
        return found


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


ROW = {
    "db.collection.name": "telemetry_safes",
    "optilock.action": "update",
    "optilock.kind": "updated",
}


def test_metrics_have_their_names_units_and_attributes(engine, telemetry):
    """B4: the metrics of OpenTelemetry."""
    opentelemetry.instrument(**telemetry.providers)
    work(engine)
    events.emit(lambda: events.Hot("telemetry_safes", (SECRET,), 0.5, 2, "reason"))

    assert telemetry.points() == {
        "optilock.unit.duration": [({}, 2), ({"error.type": "LookupError"}, 1)],
        "optilock.unit.attempts": [({}, 1)],
        "optilock.conflicts": [(ROW | {"optilock.reason": "race"}, 2)],
        "optilock.resolutions": [(ROW, 1)],
        "optilock.retries": [({"error.type": "ConcurrencyError"}, 1)],
        "optilock.hot_rows": [({"db.collection.name": "telemetry_safes"}, 1)],
    }


def test_the_buckets_of_the_duration_reach_from_a_millisecond_to_ten_seconds(engine, telemetry):
    """B4: a histogram in seconds with useful buckets."""
    opentelemetry.instrument(**telemetry.providers)
    work(engine)
    data: Any = telemetry.reader.get_metrics_data()
    metrics = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}

    bounds = metrics["optilock.unit.duration"].data.data_points[0].explicit_bounds
    assert (bounds[0], bounds[-1]) == (0.001, 10)
    units = {name: metric.unit for name, metric in metrics.items()}
    assert units["optilock.unit.duration"] == "s"
    assert units["optilock.conflicts"] == "{row}"


def test_each_attempt_is_a_span_with_events_and_without_values(engine, telemetry):
    """B4: spans ``optilock.unit``, one for an attempt, with what happened in them."""
    opentelemetry.instrument(**telemetry.providers)
    tracer = telemetry.tracers.get_tracer("test")
    with tracer.start_as_current_span("request") as request:
        work(engine)
        assert trace.get_current_span() is request
    spans = {span.name: span for span in telemetry.exporter.get_finished_spans()}
    units = [s for s in telemetry.exporter.get_finished_spans() if s.name == "optilock.unit"]

    assert [[e.name for e in unit.events] for unit in units] == [
        ["optilock.conflict", "optilock.resolved"],
        ["optilock.conflict"],
        [],
        [],
    ]
    assert [event.name for event in spans["request"].events] == ["optilock.retry"]
    assert [unit.attributes["optilock.attempt"] for unit in units] == [1, 1, 2, 1]
    assert [unit.status.is_ok for unit in units] == [True, False, True, False]
    assert [unit.attributes.get("error.type") for unit in units] == [
        None,
        "ConcurrencyError",
        None,
        "LookupError",
    ]
    assert {unit.parent.span_id for unit in units} == {request.get_span_context().span_id}
    assert {unit.kind for unit in units} == {trace.SpanKind.INTERNAL}
    assert SECRET not in "".join(span.to_json() for span in units)


def test_keys_are_attributes_of_span_events_only_on_request(engine, telemetry):
    """B4: low cardinality; keys are opt-in."""
    opentelemetry.instrument(**telemetry.providers, keys=True)
    work(engine)
    [unit, *_] = telemetry.exporter.get_finished_spans()

    assert unit.events[0].attributes["optilock.keys"] == (f"('{SECRET}',)",)
    assert SECRET not in str(telemetry.points())


def test_statements_of_async_units_are_inside_of_the_span_and_none_is_left(tmp_path, telemetry):
    """B4: an async unit ends in another task, and the span before it is current again."""
    opentelemetry.instrument(**telemetry.providers)
    inside = []

    async def run() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/async.db")
        sessions = async_sessionmaker(engine)
        before = trace.get_current_span()
        async with AsyncUnitOfWork(sessions) as session:
            await session.connection()
            inside.append(trace.get_current_span())
        with pytest.raises(LookupError):
            async with AsyncUnitOfWork(sessions):
                raise LookupError
        assert trace.get_current_span() is before
        await engine.dispose()

    asyncio.run(run())
    first, second = telemetry.exporter.get_finished_spans()
    assert inside[0].get_span_context() == first.get_span_context()
    assert (first.status.is_ok, second.status.is_ok) == (True, False)


def test_a_unit_that_runs_once_is_one_measurement(engine, telemetry, monkeypatch):
    """B4: half of the cost of a unit's metrics was a second call of the SDK."""
    opentelemetry.instrument(**telemetry.providers, spans=False)
    calls = []
    monkeypatch.setattr(Histogram, "record", lambda *given, **named: calls.append((given, named)))
    with UnitOfWork(sessionmaker(engine)):
        pass
    [((_, seconds), named)] = calls
    assert (type(seconds), named) == (float, {})


@pytest.mark.parametrize("name", ["spans", "metrics", "keys"])
def test_switches_are_true_or_false(name):
    """B4: bad input."""
    with pytest.raises(ConfigurationError, match=name):
        opentelemetry.instrument(**{name: "yes"})


# -- Prometheus ------------------------------------------------------------------------------------


def test_prometheus_has_its_metrics_and_labels(engine):
    """B4: the metrics of Prometheus."""
    registry = CollectorRegistry()
    prometheus.instrument(registry)
    work(engine)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    row = {"table": "telemetry_safes", "action": "update", "kind": "updated"}
    assert sample("optilock_conflicts_total", **row, reason="race") == 2
    assert sample("optilock_resolutions_total", table="telemetry_safes") == 1
    assert sample("optilock_retries_total", error="ConcurrencyError") == 1
    assert sample("optilock_unit_duration_seconds_count") == 3
    assert SECRET not in generate_latest(registry).decode()

    prometheus.uninstrument()
    assert generate_latest(registry) == b""


# -- logs ------------------------------------------------------------------------------------------


def test_logs_have_their_levels_and_fields(engine, caplog):
    """B4: one line an event, with its fields."""
    caplog.set_level(logging.DEBUG, "optilock.events")
    logs.instrument()
    work(engine)
    lines = [
        (record.msg % record.args, record.levelname, record.optilock)
        for record in caplog.records
        if record.name == "optilock.events"
    ]

    assert [(fields["event"], level) for _, level, fields in lines] == [
        ("Conflict", "INFO"),
        ("Resolved", "INFO"),
        ("Committed", "DEBUG"),
        ("Conflict", "INFO"),
        ("Retry", "WARNING"),
        ("Committed", "DEBUG"),
        ("Failed", "WARNING"),
    ]
    assert lines[5][2]["unit"] == "change"
    assert f"{SECRET} of" not in caplog.text


def test_a_level_that_is_off_costs_no_dictionary(engine, caplog, monkeypatch):
    """B4: logging off by level."""
    caplog.set_level(logging.CRITICAL, "optilock.events")
    logs.instrument()
    monkeypatch.setattr(events.Committed, "as_dict", lambda *_: pytest.fail("built"))
    with UnitOfWork(sessionmaker(engine)):
        pass


def test_structlog_gets_the_fields_where_the_program_has_configured_it(engine):
    """B4: structlog, only if it is used."""
    logs.instrument()
    with structlog.testing.capture_logs() as captured:
        work(engine)
    assert captured == []
    logs.uninstrument()
    structlog.reset_defaults()  # to capture is to configure
    structlog.configure()
    try:
        with structlog.testing.capture_logs() as captured:
            logs.instrument()
            work(engine)
    finally:
        structlog.reset_defaults()

    assert [one["event"] for one in captured][:3] == ["Conflict", "Resolved", "Committed"]
    assert captured[4]["log_level"] == "warning"
    assert captured[5]["unit"] == "change"


# -- switched on and off ---------------------------------------------------------------------------

SWITCHES: list[Callable[..., Any]] = [
    lambda telemetry: opentelemetry.instrument(**telemetry.providers),
    lambda telemetry: prometheus.instrument(CollectorRegistry()),
    lambda telemetry: logs.instrument(),
]


@pytest.mark.parametrize("instrument", SWITCHES, ids=["opentelemetry", "prometheus", "logs"])
def test_it_is_switched_on_once_and_off_for_good(engine, telemetry, instrument):
    """B4: both calls are safe twice."""
    for _ in range(2):
        before = len(events.listeners), len(parts.standing)
        instrument(telemetry)
        once = len(events.listeners), len(parts.standing)
        instrument(telemetry)
        assert (len(events.listeners), len(parts.standing)) == once != before
        work(engine)
        for one in (opentelemetry, prometheus, logs) * 2:
            one.uninstrument()
        assert (events.listeners, parts.standing) == ((), ())


def test_what_could_not_be_installed_is_taken_back_and_can_be_tried_again(engine, telemetry):
    """B4: a registry with one of the names kept the other metrics for good; spans went on."""
    registry = CollectorRegistry()
    other = Counter("optilock_retries", "Of the program.", registry=registry)
    with pytest.raises(ValueError, match="optilock_retries"):
        prometheus.instrument(registry)
    assert "optilock_conflicts" not in generate_latest(registry).decode()
    assert events.listeners == ()
    registry.unregister(other)
    prometheus.instrument(registry)
    work(engine)
    assert registry.get_sample_value("optilock_unit_duration_seconds_count") == 3

    given = {**telemetry.providers, "meter_provider": object()}
    prometheus.uninstrument()
    with pytest.raises(AttributeError):
        opentelemetry.instrument(**given)
    assert (events.listeners, parts.standing) == ((), ())
    opentelemetry.instrument(**telemetry.providers)
    work(engine)
    assert telemetry.points()["optilock.retries"] == [({"error.type": "ConcurrencyError"}, 1)]


def test_metrics_that_the_program_took_out_of_its_registry_are_no_error(engine):
    """B4: uninstrument() ends all, and instrument() begins again."""
    registry = CollectorRegistry()
    prometheus.instrument(registry)
    for collector in [*registry._collector_to_names]:
        registry.unregister(collector)
    prometheus.uninstrument()
    prometheus.instrument(registry)
    with UnitOfWork(sessionmaker(engine)):
        pass
    assert registry.get_sample_value("optilock_unit_duration_seconds_count") == 1


@pytest.mark.parametrize(
    ("module", "package"), [(opentelemetry, "opentelemetry"), (prometheus, "prometheus_client")]
)
def test_a_package_that_is_not_installed_names_its_extra(monkeypatch, module, package):
    """B4: the error says which extra to install."""
    monkeypatch.setitem(sys.modules, package, None)
    name = module.__name__.rpartition(".")[2]

    with pytest.raises(ModuleNotFoundError, match=rf"optilock\[{name}\]"):
        module.instrument()
    assert events.listeners == ()


def test_after_uninstrument_a_unit_calls_what_it_called_before(engine, telemetry):
    """B4: telemetry that is off costs nothing."""
    sessions = sessionmaker(engine)

    def unit() -> None:
        with UnitOfWork(sessions) as session:
            session.get_one(Safe, SECRET).code += "x"

    def calls() -> int:
        return min(len(calls_of(unit)) for _ in range(3))

    unit()
    before = calls()
    opentelemetry.instrument(**telemetry.providers)
    assert calls() > before
    opentelemetry.uninstrument()
    assert calls() == before
