"""Metrics for Prometheus: ``pip install "optilock[prometheus]"``.

::

    from optilock.telemetry import prometheus

    prometheus.instrument()             # the registry of prometheus_client, or a given one

``optilock_conflicts_total{table,action,kind}``, ``optilock_resolutions_total{table}``,
``optilock_retries_total{error}`` and the histogram ``optilock_unit_duration_seconds``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from optilock import events
from optilock.errors.base import extra
from optilock.telemetry.labels import SECONDS, count_labels, name_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["instrument", "uninstrument"]

_changing = threading.Lock()
_installed: list[_Metrics] = []


def instrument(registry: CollectorRegistry | None = None) -> None:
    """Count and measure from here on; a second call changes nothing.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed; the message names the extra.
    """
    with extra("prometheus"):
        import prometheus_client
    with _changing:
        if not _installed:
            metrics = _Metrics(prometheus_client.REGISTRY if registry is None else registry)
            events.listen(metrics)
            _installed.append(metrics)


def uninstrument() -> None:
    """Count nothing from here on, and take the metrics out of the registry."""
    with _changing:
        while _installed:
            metrics = _installed.pop()
            events.unlisten(metrics)
            metrics.withdraw()


class _Metrics:
    """A listener that counts and measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        self._registry = registry
        self._conflicts = Counter(
            "optilock_conflicts",
            "Rows that another transaction had changed first.",
            ["table", "action", "kind"],
            registry=registry,
        )
        self._resolutions = Counter(
            "optilock_resolutions",
            "Conflicting rows that were settled in the same transaction.",
            ["table"],
            registry=registry,
        )
        self._retries = Counter(
            "optilock_retries", "Units of work that run again.", ["error"], registry=registry
        )
        self._duration = Histogram(
            "optilock_unit_duration_seconds",
            "Seconds of a unit of work, stored or failed, all attempts included.",
            buckets=SECONDS,
            registry=registry,
        )

    def withdraw(self) -> None:
        """Take the metrics out of the registry."""
        metrics: tuple[Any, ...] = (
            self._conflicts,
            self._resolutions,
            self._retries,
            self._duration,
        )
        for metric in metrics:
            self._registry.unregister(metric)

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Committed(seconds=seconds) | events.Failed(seconds=seconds):
                self._duration.observe(seconds)
            case events.Conflict(entries=entries):
                for labels, rows in count_labels(entries).items():
                    self._conflicts.labels(*labels).inc(rows)
            case events.Resolved(entries=entries):
                for (table, *_), rows in count_labels(entries).items():
                    self._resolutions.labels(table).inc(rows)
            case events.Retry(error=error):
                self._retries.labels(name_of(error)).inc()
