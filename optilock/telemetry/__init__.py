"""Traces, metrics and logs of the events of :mod:`optilock.events`; one module for each package.

:mod:`~optilock.telemetry.opentelemetry` has spans and metrics,
:mod:`~optilock.telemetry.prometheus` has metrics, and :mod:`~optilock.telemetry.logs` writes to
``logging`` or structlog. Each has ``instrument()`` and ``uninstrument()``, and a second call of
either changes nothing. What they share is in :mod:`~optilock.telemetry.labels`.

Labels and attributes have few values: tables, actions and names of errors. They never have a key, a
value, a user or a message.
"""
