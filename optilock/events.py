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
Each stored row is a ``Written`` after COMMIT; ``listen(log, written=False)`` leaves these out.

Every conflict is one ``Conflict``, in a flush, a call or at COMMIT: each place that makes a
``ConcurrencyError`` raises it through :func:`report`.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

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
    "Written",
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
    #: ``"precondition"``: the caller named a stale version. ``"race"``: two transactions met.
    reason: Literal["precondition", "race"] = "race"

    def __post_init__(self) -> None:
        if any(entry.demanded for entry in self.entries):
            object.__setattr__(self, "reason", "precondition")
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
    #: It took fewer round trips, with ``pipelined=True``.
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


@dataclass(frozen=True)
class Written(_Event):
    """A row is stored: one event for each row that was written, after COMMIT.

    Rows of a statement without known keys are one event with ``identity=None`` and their number.
    """

    model: type[Any]
    #: As in an entry: the table with the version, or the base table.
    table: str
    #: ``"upsert"``: the row was inserted or updated.
    action: Literal["insert", "update", "delete", "upsert"]
    #: The primary key; ``None``: the rows are unknown.
    identity: tuple[Any, ...] | None = None
    #: The versions before and after; ``None``: there was or is none, or it is unknown.
    before: Any = None
    version: Any = None
    #: The attributes of the written columns, without the version.
    columns: tuple[str, ...] = ()
    #: The value of ``__version_author__``, if the write has it.
    author: Any = field(default=None, repr=False)
    #: The name of the unit.
    name: str | None = None
    #: The number of rows; ``None``: it is unknown.
    rows: int | None = 1

    def as_dict(self, *, values: bool = False) -> dict[str, Any]:
        """The event for ``json.dumps``; the author only if ``values`` are asked for."""
        told = {name: as_json(value) for name, value in vars(self).items()}
        if not values:
            del told["author"]
        return {"event": "Written", **told, "model": self.model.__name__}


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
    | Written
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
#: What listens, in its order, and whether to ``Written``; once more for each block that is open.
_registered: list[tuple[Listener, bool]] = []
#: Each of them once. Code that must not call a function where nothing listens reads it first.
listeners: tuple[Listener, ...] = ()
#: Those of them that get ``Written``, for which each row is noted.
listeners_to_rows: tuple[Listener, ...] = ()


#: Called with rows whose settlement is over, and ``"raised"`` or ``"returned"``: that is what
#: becomes of each that no ``Resolved`` has named (:mod:`optilock.telemetry.conflict_log`).
concluding: tuple[Callable[[Iterable[Entry[Any]], str], object], ...] = ()

#: Nothing is reported in this context: the guard tests itself.
muted: ContextVar[bool] = ContextVar("optilock_muted", default=False)


def listen(listener: L, *, written: bool = True) -> L:
    """Call ``listener`` with every event of this process; usable as a decorator.

    A function that is registered twice is called once for each event. With ``written=False`` it
    gets no ``Written``, and the rows of a transaction are noted for other listeners only.

    Raises:
        ConfigurationError: it is no function, or one whose result would have to be awaited.
    """
    _require_function(listener, "listen")
    with _changing:
        if (listener, written) not in _registered:
            _registered.append((listener, written))
        _update()
    return listener


def unlisten(listener: Listener) -> None:
    """Stop calling ``listener``; nothing happens when it does not listen."""
    with _changing:
        _registered[:] = [one for one in _registered if one[0] != listener]
        _update()


@contextmanager
def listening(listener: L, *, written: bool = True) -> Iterator[L]:
    """Call ``listener`` with the events of this process until the block is left.

    It goes on to listen afterwards if it did before, or if another block of it is open.

    Raises:
        ConfigurationError: as :func:`listen`.
    """
    _require_function(listener, "listening")
    with _changing:
        _registered.append((listener, written))
        _update()
    try:
        yield listener
    finally:
        with _changing:
            if (listener, written) in _registered:  # unlisten() ends the block's part, too
                _registered.remove((listener, written))
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
    global listeners, listeners_to_rows
    listeners = _each_once(one for one, _ in _registered)
    listeners_to_rows = _each_once(one for one, written in _registered if written)


def _each_once(some: Iterable[Listener]) -> tuple[Listener, ...]:
    found: list[Listener] = []
    for one in some:  # compared, not hashed: an object with __call__ may have no hash
        if one not in found:
            found.append(one)
    return tuple(found)


def emit(build: Callable[[], Event]) -> None:
    """Tell the listeners; ``build`` is called only when there are any."""
    if not listeners or muted.get():
        return
    event = build()
    handled = sys.exception()
    for listener in listeners_to_rows if type(event) is Written else listeners:
        try:
            listener(event)
        except Exception as error:
            what = type(event).__name__
            _log.error("a listener failed on %s", what, exc_info=without_handled(error, handled))


def conclude(entries: Iterable[Entry[Any]], outcome: str = "raised") -> None:
    """Note that these rows, without a ``Resolved``, are now raised or returned."""
    for call in concluding:
        call(entries, outcome)


def report(conflict: C) -> C:
    """Return the conflict when the listeners have got it: ``raise report(conflict)``.

    They get it once, however often it is reported.
    """
    if listeners and not conflict.reported:
        tables = (conflict.table,) if isinstance(conflict, LinkGone) else ()
        emit(lambda: Conflict(conflict.entries, tables, conflict.reason))
        conclude(conflict.entries)
    conflict.reported = True
    return conflict
