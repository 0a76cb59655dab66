"""Metrics for Prometheus: ``pip install "optilock[prometheus]"``.

::

    from optilock.telemetry import prometheus

    prometheus.instrument()             # the registry of prometheus_client, or a given one

``optilock_conflicts_total{table,action,kind,reason}``, ``optilock_resolutions_total{table}``,
``optilock_retries_total{error}`` and the histogram ``optilock_unit_duration_seconds``.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from optilock import events
from optilock.errors.base import extra
from optilock.telemetry.labels import SECONDS, count_labels, name_of
from optilock.telemetry.switch import Switch

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["instrument", "uninstrument"]

M = TypeVar("M")
_switch = Switch()


def instrument(registry: CollectorRegistry | None = None) -> None:
    """Count and measure from here on; a second call changes nothing.

    A call that fails installs nothing.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed; the message names the extra.
        ValueError: the registry has a metric of the same name (raised by prometheus_client).
    """
    with extra("prometheus"):
        import prometheus_client

    def install(undo: ExitStack) -> None:
        metrics = _Metrics(prometheus_client.REGISTRY if registry is None else registry, undo)
        events.listen(metrics, written=False)
        undo.callback(events.unlisten, metrics)

    _switch.on(install)


def uninstrument() -> None:
    """Count nothing from here on, and take the metrics out of the registry."""
    _switch.off()


class _Metrics:
    """A listener that counts and measures."""

    def __init__(self, registry: CollectorRegistry, undo: ExitStack) -> None:
        from prometheus_client import Counter, Histogram

        def added(metric: M) -> M:
            undo.callback(_withdraw, registry, metric)
            return metric

        self._conflicts = added(
            Counter(
                "optilock_conflicts",
                "Rows that another transaction had changed first.",
                ["table", "action", "kind", "reason"],
                registry=registry,
            )
        )
        self._resolutions = added(
            Counter(
                "optilock_resolutions",
                "Conflicting rows that were settled in the same transaction.",
                ["table"],
                registry=registry,
            )
        )
        self._retries = added(
            Counter(
                "optilock_retries", "Units of work that run again.", ["error"], registry=registry
            )
        )
        self._duration = added(
            Histogram(
                "optilock_unit_duration_seconds",
                "Seconds of a unit of work, stored or failed, all attempts included.",
                buckets=SECONDS,
                registry=registry,
            )
        )

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Committed(seconds=seconds) | events.Failed(seconds=seconds):
                self._duration.observe(seconds)
            case events.Conflict(entries=entries, reason=reason):
                for labels, rows in count_labels(entries).items():
                    self._conflicts.labels(*labels, reason).inc(rows)
            case events.Resolved(entries=entries):
                for (table, *_), rows in count_labels(entries).items():
                    self._resolutions.labels(table).inc(rows)
            case events.Retry(error=error):
                self._retries.labels(name_of(error)).inc()


def _withdraw(registry: CollectorRegistry, metric: Any) -> None:
    """Take a metric out of the registry, if the program has not done so."""
    with suppress(KeyError):
        registry.unregister(metric)
