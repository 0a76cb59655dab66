"""Events as frozen records, and their listeners.

::

    from optilock import events

    @events.listen
    def log(event: events.Event) -> None:
        print(json.dumps(event.as_dict()))

    events.unlisten(log)

A listener that raises is logged (logger ``optilock``) and does not disturb the unit of work.
Nothing is built without a listener. Neither ``repr`` nor ``as_dict()`` of an event has a value of
a column, or the words of a driver, which quotes values; ``as_dict(values=True)`` has both.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from optilock.errors import ConcurrencyError, ConfigurationError, Entry, OptilockError
from optilock.serialize import as_json, without_handled

__all__ = [
    "Cold",
    "Committed",
    "Conflict",
    "Event",
    "Hot",
    "Repeated",
    "Resolved",
    "Retry",
    "emit",
    "listen",
    "unlisten",
]


class _Event:
    """The base of all events."""

    def as_dict(self, *, values: bool = False) -> dict[str, Any]:
        """The event for ``json.dumps``; values of columns only if ``values`` are asked for."""
        told = {name: _told(value, values) for name, value in vars(self).items()}
        return {"event": type(self).__name__, **told}


def _told(value: Any, values: bool) -> Any:
    match value:
        case tuple():
            return [
                one.as_dict(values=values) if isinstance(one, Entry) else as_json(one)
                for one in value
            ]
        case BaseException():
            return _error_told(value, values)
    return value


def _error_told(error: BaseException, values: bool) -> dict[str, Any]:
    if isinstance(error, ConcurrencyError):
        return error.as_dict(values=values)
    told = {"error": type(error).__name__}
    if values or isinstance(error, OptilockError):
        told["message"] = str(error)
    return told


@dataclass(frozen=True)
class Conflict(_Event):
    """Rows of one flush were changed by others first (before any resolver ran)."""

    entries: tuple[Entry[Any], ...]


@dataclass(frozen=True)
class Resolved(_Event):
    """Every conflicting row of one flush was settled in the same transaction."""

    entries: tuple[Entry[Any], ...]


@dataclass(frozen=True)
class Repeated(_Event):
    """A later attempt of a retry writes the same values as one before it, over others' changes.

    The rows have no resolver that could refuse; see ``repeat_values`` of :func:`optilock.retry`.
    """

    entries: tuple[Entry[Any], ...]


@dataclass(frozen=True)
class Retry(_Event):
    """A unit of work failed and will run again after ``wait`` seconds."""

    attempt: int
    wait: float
    error: BaseException

    def __repr__(self) -> str:
        known = isinstance(self.error, OptilockError)
        error = repr(self.error) if known else f"<{type(self.error).__name__}>"
        return f"Retry(attempt={self.attempt}, wait={self.wait}, error={error})"


@dataclass(frozen=True)
class Committed(_Event):
    """A unit of work was committed, after ``attempts`` attempts (1 without a retry)."""

    attempts: int
    seconds: float


@dataclass(frozen=True)
class Hot(_Event):
    """``strategy="adaptive"`` locks the row from now on when it is read, ``because`` of the reason.

    ``identity=None``: rows of the table that queries read, without known keys.
    ``identity=()``: all reads of the table, because transactions have deadlocked over it; or each
    row that is read by its key, because several rows have conflicted that were not hot.
    """

    table: str
    identity: tuple[Any, ...] | None
    #: The moving average of its conflicts, from 0 to 1, and how many there were.
    average: float
    conflicts: int
    because: str


@dataclass(frozen=True)
class Cold(_Event):
    """A hot row is read without a lock again, and ``because`` of what."""

    table: str
    identity: tuple[Any, ...] | None
    average: float
    conflicts: int
    because: str


Event = Conflict | Resolved | Repeated | Retry | Committed | Hot | Cold
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
    handled = sys.exception()
    for listener in tuple(_listeners):
        try:
            listener(event)
        except Exception as error:
            what = type(event).__name__
            _log.error("a listener failed on %s", what, exc_info=without_handled(error, handled))
