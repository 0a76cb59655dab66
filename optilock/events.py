"""Events as frozen records, and their listeners.

::

    from optilock import events

    @events.listen
    def log(event: events.Event) -> None:
        print(json.dumps(event.as_dict()))

    events.unlisten(log)

    with events.listening(log):         # for the block alone
        ...

A listener that raises is logged (logger ``optilock``), and neither disturbs the work nor the other
listeners. Nothing is built without a listener. Neither ``repr`` nor ``as_dict()`` of an event has a
value of a column, or the words of a driver, which quotes values; ``as_dict(values=True)`` has both.

Every conflict is one ``Conflict``, in a flush, a call or at COMMIT: each place that makes a
``ConcurrencyError`` raises it through :func:`report`.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from optilock.errors import ConcurrencyError, ConfigurationError, Entry, LinkGone, OptilockError
from optilock.serialize import as_json, without_handled

__all__ = [
    "Acquired",
    "Cold",
    "Committed",
    "Conflict",
    "DeadLetter",
    "Event",
    "Failed",
    "Handled",
    "HandlingFailed",
    "Hot",
    "Lost",
    "Repeated",
    "Resolved",
    "Retry",
    "SessionCommitted",
    "emit",
    "listen",
    "listening",
    "report",
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


def _shown(event: _Event, error: BaseException) -> str:
    """Return the ``repr`` of an event with an error, without the words of a driver."""
    known = isinstance(error, OptilockError)
    named = vars(event) | {"error": repr(error) if known else f"<{type(error).__name__}>"}
    fields = (f"{k}={v if k == 'error' else repr(v)}" for k, v in named.items())
    return f"{type(event).__name__}({', '.join(fields)})"


# -- conflicts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conflict(_Event):
    """Rows were changed by others first: of one flush, one call, or one transaction.

    It comes before any resolver runs. There are no entries where the database ended the transaction
    and no row has moved since, where links were gone, and where a condition of a request did not
    hold for a version that the program has compared itself.
    """

    entries: tuple[Entry[Any], ...]
    #: The tables of the entries, each once: the one with the version, or the base table.
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.entries and not self.tables:
            tables = dict.fromkeys(entry.table or entry.model.__name__ for entry in self.entries)
            object.__setattr__(self, "tables", tuple(tables))


@dataclass(frozen=True)
class Resolved(_Event):
    """Every conflicting row of one flush was settled in the same transaction."""

    entries: tuple[Entry[Any], ...]
    #: For each entry the name of what decided: of its resolver, or ``on_delete``.
    resolvers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repeated(_Event):
    """A later attempt of a retry writes the same values as one before it, over others' changes.

    Their columns are named in ``__version_repeats__`` of the class.
    """

    entries: tuple[Entry[Any], ...]


# -- units of work ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retry(_Event):
    """A unit of work failed and will run again after ``wait`` seconds."""

    attempt: int
    wait: float
    error: BaseException
    #: ``name=`` of the unit, or the name of the decorated function.
    name: str | None = None

    def __repr__(self) -> str:
        return _shown(self, self.error)


@dataclass(frozen=True)
class Committed(_Event):
    """A unit of work was committed, after ``attempts`` attempts (1 without a retry)."""

    attempts: int
    seconds: float
    name: str | None = None
    #: It took fewer round trips, with ``pipelined=True``, or ``"auto"`` far from the server.
    pipelined: bool = False


@dataclass(frozen=True)
class Failed(_Event):
    """A unit of work failed, and is not run again: nothing of it is stored.

    With ``CommitOutcomeUnknown``, and with a cancellation inside COMMIT, it may be stored.
    """

    error: BaseException
    attempts: int
    seconds: float
    name: str | None = None

    def __repr__(self) -> str:
        return _shown(self, self.error)


@dataclass(frozen=True)
class SessionCommitted(_Event):
    """A watched session outside of units was committed; its COMMIT took so many seconds."""

    seconds: float


# -- rows that are locked when they are read -------------------------------------------------------


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


# -- leases and queues -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Acquired(_Event):
    """A block has got a lease, or opened a name: ``kind`` is "lease" or "handle"."""

    kind: str
    #: As messages name it: "the lease on Page 7".
    what: str


@dataclass(frozen=True)
class Lost(_Event):
    """A block has lost its lease or handle, which was not renewed in time, or was taken."""

    kind: str
    what: str
    error: BaseException

    def __repr__(self) -> str:
        return _shown(self, self.error)


@dataclass(frozen=True)
class Handled(_Event):
    """The handler of a worker has returned: the message is done, and deleted next."""

    queue: str
    message: int
    #: How often the message was received.
    receives: int


@dataclass(frozen=True)
class HandlingFailed(_Event):
    """The handler of a worker raised, or has not returned in time; its message comes back."""

    queue: str
    message: int
    receives: int
    error: BaseException

    def __repr__(self) -> str:
        return _shown(self, self.error)


@dataclass(frozen=True)
class DeadLetter(_Event):
    """A message went to the dead letters: it failed, or was received, too often.

    With ``session=`` it goes there when the session commits.
    """

    queue: str
    message: int
    receives: int


Event = (
    Conflict
    | Resolved
    | Repeated
    | Retry
    | Committed
    | Failed
    | SessionCommitted
    | Hot
    | Cold
    | Acquired
    | Lost
    | Handled
    | HandlingFailed
    | DeadLetter
)
Listener = Callable[[Event], None]
L = TypeVar("L", bound=Listener)
C = TypeVar("C", bound=ConcurrencyError)

_log = logging.getLogger("optilock")

# -- listeners -------------------------------------------------------------------------------------

_changing = threading.Lock()
#: What listens, in its order; a listener of :func:`listening` once more for each block.
_registered: list[Listener] = []
#: Each of them once. Code that must not call a function where nothing listens reads it first.
listeners: tuple[Listener, ...] = ()


#: Nothing is reported in this context: the guard tests itself.
muted: ContextVar[bool] = ContextVar("optilock_muted", default=False)


def listen(listener: L) -> L:
    """Call ``listener`` with every event of this process; usable as a decorator.

    A function that is registered twice is called once for each event.

    Raises:
        ConfigurationError: it is no function, or one whose result would have to be awaited.
    """
    _require_function(listener, "listen")
    with _changing:
        if listener not in _registered:
            _registered.append(listener)
        _update()
    return listener


def unlisten(listener: Listener) -> None:
    """Stop calling ``listener``; nothing happens when it does not listen."""
    with _changing:
        while listener in _registered:
            _registered.remove(listener)
        _update()


@contextmanager
def listening(listener: L) -> Iterator[L]:
    """Call ``listener`` with the events of this process until the block is left.

    It goes on to listen afterwards if it did before, or if another block of it is open.

    Raises:
        ConfigurationError: as :func:`listen`.
    """
    _require_function(listener, "listening")
    with _changing:
        _registered.append(listener)
        _update()
    try:
        yield listener
    finally:
        with _changing:
            if listener in _registered:  # unlisten() ends the block's part, too
                _registered.remove(listener)
            _update()


def _require_function(listener: object, call: str) -> None:
    call_method = getattr(listener, "__call__", None)  # noqa: B004  # an object with an async one
    awaited = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call_method)
    if not callable(listener) or awaited:
        raise ConfigurationError(
            f"events.{call}() got {listener!r}: a listener is called and not awaited, write it as"
            " a plain def."
        )


def _update() -> None:
    global listeners
    found: list[Listener] = []
    for one in _registered:  # compared, not hashed: an object with __call__ may have no hash
        if one not in found:
            found.append(one)
    listeners = tuple(found)


def emit(build: Callable[[], Event]) -> None:
    """Tell the listeners; ``build`` is called only when there are any."""
    if not listeners or muted.get():
        return
    event = build()
    handled = sys.exception()
    for listener in listeners:
        try:
            listener(event)
        except Exception as error:
            what = type(event).__name__
            _log.error("a listener failed on %s", what, exc_info=without_handled(error, handled))


def timed(commit: Callable[..., None]) -> Callable[..., None]:
    """Return the COMMIT of a session outside of units, which is reported when it has succeeded."""

    def send(*args: Any, **options: Any) -> None:
        began = time.monotonic()
        commit(*args, **options)
        emit(lambda: SessionCommitted(time.monotonic() - began))

    return send


def report(conflict: C) -> C:
    """Return the conflict when the listeners have got it: ``raise report(conflict)``.

    They get it once, however often it is reported.
    """
    if listeners and not conflict.reported:
        tables = (conflict.table,) if isinstance(conflict, LinkGone) else ()
        emit(lambda: Conflict(conflict.entries, tables))
    conflict.reported = True
    return conflict
