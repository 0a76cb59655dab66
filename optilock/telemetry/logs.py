"""A line for each event, in the logger ``optilock.events``.

::

    from optilock.telemetry import logs

    logs.instrument()

The fields of an event (``as_dict()``) are the attribute ``optilock`` of the record, for a formatter
that writes JSON. A program that has configured structlog gets them as structlog's fields.

Retries, failures, lost leases and dead letters are warnings; conflicts, what settled them, and rows
that become hot or cold are information; commits and handled messages are for debugging.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from optilock import events
from optilock.telemetry.switch import Switch

__all__ = ["LEVELS", "instrument", "uninstrument"]

#: By the name of an event; others are information.
LEVELS = {
    "Acquired": logging.DEBUG,
    "Committed": logging.DEBUG,
    "DeadLetter": logging.WARNING,
    "Failed": logging.WARNING,
    "Handled": logging.DEBUG,
    "HandlingFailed": logging.WARNING,
    "Lost": logging.WARNING,
    "Repeated": logging.WARNING,
    "Retry": logging.WARNING,
    "SessionCommitted": logging.DEBUG,
}
#: Fields with a name that a log record has already.
_RENAMED = {"name": "unit", "message": "message_id"}
_NAME = "optilock.events"
_log = logging.getLogger(_NAME)
_switch = Switch()


def instrument() -> None:
    """Log events from here on; a second call changes nothing."""
    _switch.on(_install)


def uninstrument() -> None:
    """Log nothing from here on."""
    _switch.off()


def _install(undo: ExitStack) -> None:
    structlog = sys.modules.get("structlog")  # installed, and used by the program
    configured = structlog is not None and structlog.is_configured()
    listener = _to_structlog(structlog) if configured else _to_logging
    events.listen(listener, written=False)
    undo.callback(events.unlisten, listener)


def _level(event: events.Event) -> int:
    return LEVELS.get(type(event).__name__, logging.INFO)


def _fields(event: events.Event) -> tuple[str, dict[str, Any]]:
    """Return the name of the event, and its fields without values of columns."""
    fields = event.as_dict()
    return fields.pop("event"), {_RENAMED.get(k, k): v for k, v in fields.items()}


def _to_logging(event: events.Event) -> None:
    level = _level(event)
    if _log.isEnabledFor(level):
        name, fields = _fields(event)
        text = " ".join(f"{k}={v}" for k, v in fields.items())
        _log.log(level, "%s %s", name, text, extra={"optilock": {"event": name, **fields}})


def _to_structlog(structlog: Any) -> Callable[[events.Event], None]:
    log = structlog.get_logger(_NAME)

    def to_structlog(event: events.Event) -> None:
        name, fields = _fields(event)
        log.log(_level(event), name, **fields)

    return to_structlog
