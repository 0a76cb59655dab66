"""What happened, as frozen records, and a place to listen.

::

    from optilock import events

    @events.listen
    def log(event: events.Event) -> None:
        print(event)

    events.unlisten(log)

A listener that raises is logged (logger ``optilock``) and does not disturb the unit of work.
Nothing is built when nobody listens.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from optilock.errors import ConfigurationError, Entry

__all__ = ["Committed", "Conflict", "Event", "Resolved", "Retry", "emit", "listen", "unlisten"]


@dataclass(frozen=True)
class Conflict:
    """Rows of one flush were changed by others first (before any resolver ran)."""

    entries: tuple[Entry[Any], ...]


@dataclass(frozen=True)
class Resolved:
    """Every conflicting row of one flush was settled in the same transaction."""

    entries: tuple[Entry[Any], ...]


@dataclass(frozen=True)
class Retry:
    """A unit of work failed and will run again after ``wait`` seconds."""

    attempt: int
    wait: float
    error: BaseException


@dataclass(frozen=True)
class Committed:
    """A unit of work was committed, after ``attempts`` attempts (1 without a retry)."""

    attempts: int
    seconds: float


Event = Conflict | Resolved | Retry | Committed
Listener = Callable[[Event], None]
L = TypeVar("L", bound=Listener)

_log = logging.getLogger("optilock")
_listeners: list[Listener] = []


def listen(listener: L) -> L:
    """Call ``listener`` with every event of this process; usable as a decorator.

    Raises:
        ConfigurationError: it is no function, or one whose result would have to be awaited.
    """
    if not callable(listener) or inspect.iscoroutinefunction(listener):
        raise ConfigurationError(
            f"events.listen() got {listener!r}: a listener is called and not awaited, write it as"
            " a plain def."
        )
    _listeners.append(listener)
    return listener


def unlisten(listener: Listener) -> None:
    """Stop calling ``listener``; nothing happens when it does not listen."""
    if listener in _listeners:
        _listeners.remove(listener)


def emit(build: Callable[[], Event]) -> None:
    """Tell the listeners; ``build`` is called only when there are any."""
    if not _listeners:
        return
    event = build()
    for listener in tuple(_listeners):
        try:
            listener(event)
        except Exception:
            _log.exception("a listener failed on %s", type(event).__name__)
