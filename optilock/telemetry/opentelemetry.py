"""Spans and metrics for OpenTelemetry: ``pip install "optilock[opentelemetry]"``.

::

    from optilock.telemetry import opentelemetry

    opentelemetry.instrument()          # the providers of the process, or given ones

Each attempt of a unit of work is a span ``optilock.unit``, around the spans of statements that
SQLAlchemy's own instrumentation makes. Conflicts, resolutions and retries are events of the span
that is current. ``docs/how-to/operate/telemetry.md`` lists the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from optilock import events
from optilock.errors import ConfigurationError, Entry
from optilock.errors.base import extra
from optilock.telemetry.labels import SECONDS, Labels, count_labels, name_of
from optilock.telemetry.switch import Switch
from optilock.unit import parts
from optilock.unit.parts import StandingPart
from optilock.unit.running_units import attempt_number

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

__all__ = ["instrument", "uninstrument"]

_NAME = "optilock"
#: In ``session.info``: the span of the unit, and the context around it.
_SPAN = "optilock.telemetry.span"
_NOTHING: Mapping[str, str] = MappingProxyType({})
#: Keys of one span event.
_MOST_KEYS = 20
_switch = Switch()


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    spans: bool = True,
    metrics: bool = True,
    keys: bool = False,
) -> None:
    """Send spans and metrics from here on; a second call changes nothing.

    A call that fails installs nothing.

    Args:
        tracer_provider: the process's own by default, as ``meter_provider``.
        spans: make spans, and events of spans.
        metrics: count and measure.
        keys: primary keys of rows as attributes of span events, up to 20 an event.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed; the message names the extra.
        ConfigurationError: a switch is neither True nor False.
    """
    for name, value in {"spans": spans, "metrics": metrics, "keys": keys}.items():
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name}={value!r} is neither True nor False.")
    with extra("opentelemetry"):
        from opentelemetry import metrics as metrics_api
        from opentelemetry import trace

    def install(undo: ExitStack) -> None:
        if spans:
            _install_spans(trace.get_tracer(_NAME, tracer_provider=tracer_provider), keys, undo)
        if metrics:
            meter = metrics_api.get_meter(_NAME, meter_provider=meter_provider)
            _listen(_Metrics(meter), undo)

    _switch.on(install)


def uninstrument() -> None:
    """Send nothing from here on; without an ``instrument()`` before, nothing happens.

    Spans that are open end with their units.
    """
    _switch.off()


def _listen(listener: Callable[[events.Event], None], undo: ExitStack) -> None:
    events.listen(listener, written=False)
    undo.callback(events.unlisten, listener)


def _install_spans(tracer: Tracer, keys: bool, undo: ExitStack) -> None:
    part = Spans(tracer)
    parts.standing = (*parts.standing, part)
    undo.callback(_remove, part)
    _listen(_SpanEvents(keys), undo)


def _remove(part: StandingPart) -> None:
    parts.standing = tuple(one for one in parts.standing if one is not part)


# -- spans -----------------------------------------------------------------------------------------


class Spans(StandingPart):
    """A span around each attempt of a unit."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import context, trace

        self._tracer, self._trace, self._context = tracer, trace, context

    def begin(self, session: Session) -> None:
        around = self._context.get_current()
        number = {"optilock.attempt": attempt_number()}
        span = self._tracer.start_span("optilock.unit", attributes=number)
        session.info[_SPAN] = span, around
        self._context.attach(self._trace.set_span_in_context(span))

    def after(self, session: Session, error: BaseException | None) -> None:
        span = session.info[_SPAN][0]
        if error is not None and span.is_recording():
            span.set_attribute("error.type", name_of(error))
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def exited(self, session: Session) -> None:
        span, around = session.info.pop(_SPAN, (None, None))
        # A generator may be left in another context, where the span was never current.
        if around is not None and self._trace.get_current_span() is span:
            self._context.attach(around)


class _SpanEvents:
    """A listener that adds events to the current span."""

    def __init__(self, keys: bool) -> None:
        from opentelemetry import trace

        self._keys, self._current = keys, trace.get_current_span

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Conflict(entries=entries, reason=reason):
                self._add("optilock.conflict", entries, {"optilock.reason": reason})
            case events.Resolved(entries=entries):
                self._add("optilock.resolved", entries)
            case events.Retry(attempt=number, wait=wait, error=error):
                self._current().add_event(
                    "optilock.retry",
                    {
                        "error.type": name_of(error),
                        "optilock.attempt": number,
                        "optilock.wait": wait,
                    },
                )

    def _add(
        self, name: str, entries: Iterable[Entry[Any]], more: Mapping[str, str] = _NOTHING
    ) -> None:
        span = self._current()
        if not span.is_recording():
            return
        counted = count_labels(entries)
        if not counted:
            span.add_event(name, more)
        for labels, rows in counted.items():
            attributes: dict[str, Any] = {**_attributes(labels), **more, "optilock.rows": rows}
            if self._keys:
                keys = [str(one.identity) for one in entries if labels in count_labels((one,))]
                attributes["optilock.keys"] = keys[:_MOST_KEYS]
            span.add_event(name, attributes)


def _attributes(labels: Labels) -> dict[str, str]:
    table, action, kind = labels
    return {"db.collection.name": table, "optilock.action": action, "optilock.kind": kind}


# -- metrics ---------------------------------------------------------------------------------------


class _Metrics:
    """A listener that counts and measures."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "optilock.unit.duration",
            unit="s",
            description="Seconds of a unit of work, all attempts included.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._attempts = meter.create_histogram(
            "optilock.unit.attempts",
            unit="{attempt}",
            description="Attempts of a unit of work that ran more than once.",
            explicit_bucket_boundaries_advisory=(2, 3, 4, 5, 7, 10, 15, 20),
        )
        self._conflicts = meter.create_counter(
            "optilock.conflicts",
            unit="{row}",
            description="Rows that another transaction had changed first.",
        )
        self._resolutions = meter.create_counter(
            "optilock.resolutions",
            unit="{row}",
            description="Conflicting rows that were settled in the same transaction.",
        )
        self._retries = meter.create_counter(
            "optilock.retries", unit="{retry}", description="Units of work that run again."
        )
        self._hot = meter.create_up_down_counter(
            "optilock.hot_rows",
            unit="{row}",
            description="Rows that are locked when they are read.",
        )

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Committed():
                self._duration.record(event.seconds)
                if event.attempts > 1:  # a second record() for each unit would double the cost
                    self._attempts.record(event.attempts)
            case events.Conflict(entries=entries, reason=reason):
                for labels, rows in count_labels(entries).items():
                    self._conflicts.add(rows, {**_attributes(labels), "optilock.reason": reason})
            case events.Resolved(entries=entries):
                for labels, rows in count_labels(entries).items():
                    self._resolutions.add(rows, _attributes(labels))
            case events.Retry(error=error):
                self._retries.add(1, {"error.type": name_of(error)})
            case events.Failed(error=error, attempts=attempts, seconds=seconds):
                self._duration.record(seconds, {"error.type": name_of(error)})
                if attempts > 1:
                    self._attempts.record(attempts)
            case events.Hot(table=table):
                self._hot.add(1, {"db.collection.name": table})
            case events.Cold(table=table):
                self._hot.add(-1, {"db.collection.name": table})
