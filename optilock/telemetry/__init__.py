"""Traces, metrics and logs of the events of :mod:`optilock.events`; one module for each package.

:mod:`~optilock.telemetry.opentelemetry` has spans and metrics,
:mod:`~optilock.telemetry.prometheus` has metrics, and :mod:`~optilock.telemetry.logs` writes to
``logging`` or structlog. Each has ``instrument()`` and ``uninstrument()``, and a second call of
either changes nothing. They share the labels of rows (:mod:`~optilock.telemetry.labels`) and the
switch, which installs all or nothing (:mod:`~optilock.telemetry.switch`).
:mod:`~optilock.telemetry.conflict_log` writes a row for each conflict into a table, with its key
and its authors, and the command of :mod:`~optilock.telemetry.conflict_report` counts these rows.

Labels and attributes of the others have few values: tables, actions and names of errors. They
never have a key, a value, a user or a message.
"""
