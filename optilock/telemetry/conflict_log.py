"""A row for each conflict, in the table ``optilock_conflicts`` (:mod:`optilock.tables.conflicts`).

::

    from optilock.telemetry import conflict_log

    conflict_log.instrument(engine)                         # or values=[Page.title]

A row has the conflicting row, both versions, both authors, the columns and the outcome, and values
only of the columns that are named. It is written once the outcome is known: in a unit when the
unit, or its attempt, has ended, so that a rollback does not take it along. A thread writes it, in a
transaction of its own, and ends when nothing is left. The work never waits for it, and without a
conflict nothing is sent.

A row that cannot be written is tried again after a transient error. Then it is lost: a warning of
the logger ``optilock`` follows, and :func:`lost` counts it. Conflicts without a row (``LinkGone``,
write skew) are not logged.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, insert
from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from optilock import events
from optilock.dialects.engines import on_engine
from optilock.errors import ConcurrencyError, ConfigurationError, Entry, describe
from optilock.serialize import as_json
from optilock.tables.conflicts import LONGEST, conflicts
from optilock.telemetry.switch import Switch
from optilock.unit.retries import retrying
from optilock.unit.running_units import current_attempt, units_around

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["flush", "instrument", "lost", "uninstrument"]

#: Rows of one INSERT, and rows that wait for one at most.
_BATCH, _MOST = 500, 10_000
_CALL = "conflict_log.instrument"
_log = logging.getLogger("optilock")
_switch = Switch()


def instrument(
    engine: Engine | AsyncEngine, *, values: Iterable[QueryableAttribute[Any]] = ()
) -> None:
    """Log the conflicts of this process from here on; a second call changes nothing.

    Args:
        engine: of the database with the table. An ``AsyncEngine`` needs ``poolclass=NullPool``.
        values: columns whose three values are stored, as ``[Page.title]``.

    Raises:
        ConfigurationError: it is no engine, or one whose connections a thread cannot have; or a
            value is no column of a class.
    """
    _require_engine(engine)
    named = tuple(values)
    for one in named:
        if not isinstance(one, QueryableAttribute):
            raise ConfigurationError(
                f"{_CALL}(values=...) takes attributes of classes, not {describe(one)}: write"
                " values=[Page.title]."
            )

    def install(undo: ExitStack) -> None:
        global _current
        _current = log = _ConflictLog(engine, named)
        events.listen(log, written=False)
        undo.callback(events.unlisten, log)
        events.concluding = (*events.concluding, log.conclude)
        undo.callback(_remove, log.conclude)

    _switch.on(install)


def uninstrument() -> None:
    """Log nothing from here on; what waits is still written."""
    _switch.off()


def flush(timeout: float | None = None) -> None:
    """Wait until the conflicts of units that have ended are written, or are lost."""
    if _current is not None and (writer := _current.writer) is not None:
        writer.join(timeout)


def lost() -> int:
    """Return how many conflicts could not be written since the log was installed."""
    return 0 if _current is None else _current.lost


def _remove(call: Any) -> None:
    events.concluding = tuple(one for one in events.concluding if one != call)


def _require_engine(engine: Any) -> None:
    """Refuse an engine whose connections belong to another thread, or to an event loop."""
    sync = engine if isinstance(engine, Engine) else getattr(engine, "sync_engine", None)
    if not isinstance(sync, Engine):
        raise ConfigurationError(
            f"{_CALL}() takes an Engine or an AsyncEngine, not {describe(engine)}."
        )
    pool = sync.pool
    if isinstance(pool, (StaticPool, SingletonThreadPool)):
        raise ConfigurationError(
            f"{_CALL}() writes on a connection of its own, and this engine has one for all"
            f" ({type(pool).__name__}): use a database in a file or on a server."
        )
    if sync is not engine and not isinstance(pool, NullPool):
        raise ConfigurationError(
            f"{_CALL}() writes in a thread, and the pool of this AsyncEngine belongs to an event"
            " loop: give it create_async_engine(url, poolclass=NullPool), or a sync Engine."
        )


@dataclass(eq=False)
class _Record:
    """A conflicting row, whose outcome may not be known yet."""

    entry: Entry[Any]
    reason: str
    unit: str | None
    #: The records of the same unit or attempt; ``None`` outside of both.
    beside: list[_Record] | None
    outcome: str = ""
    resolver: str | None = None
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class _ConflictLog:
    """The listener, and the thread that writes."""

    def __init__(self, engine: Any, values: tuple[QueryableAttribute[Any], ...]) -> None:
        self._engine, self._values = engine, values
        #: By the ``id`` of its entry, which the record keeps alive.
        self._open: dict[int, _Record] = {}
        self._of: weakref.WeakKeyDictionary[Any, list[_Record]] = weakref.WeakKeyDictionary()
        self._waiting: deque[_Record] = deque()
        self._changing = threading.RLock()  # a finalizer may run while the same thread has it
        self.writer: threading.Thread | None = None
        self.lost = 0

    # -- what becomes of a conflict ----------------------------------------------------------------

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Conflict(entries=entries, reason=reason):
                self._begin(entries, reason)
            case events.Resolved(entries=entries, resolvers=names):
                for entry, name in zip(entries, names, strict=False):
                    self.conclude((entry,), "resolved", name)
            case events.Retry(error=error):
                self._end_with(error, "retried")
            case events.Failed(error=error):
                self._end_with(error, "failed")
                self._end_here()
            case events.Committed():
                self._end_here()

    def conclude(
        self, entries: Iterable[Entry[Any]], outcome: str, resolver: str | None = None
    ) -> None:
        """Note the outcome of rows, unless they have one."""
        found = [one for entry in entries if (one := self._open.get(id(entry))) is not None]
        for record in found:
            if not record.outcome:
                record.outcome, record.resolver = outcome, resolver
        self._end([record for record in found if record.beside is None])

    def _begin(self, entries: Iterable[Entry[Any]], reason: str) -> None:
        place = _unit_or_attempt()
        beside = None if place is None else self._of.get(place)
        if place is not None and beside is None:
            beside = self._of[place] = []
            weakref.finalize(place, self._end, beside)  # no event may follow
        for entry in entries:
            if id(entry) not in self._open:
                record = _Record(entry, reason, getattr(place, "name", None), beside)
                self._open[id(entry)] = record
                if beside is not None:
                    beside.append(record)

    def _end_with(self, error: BaseException, outcome: str) -> None:
        found = [self._open[id(one)] for one in _entries_of(error) if id(one) in self._open]
        for record in found:
            record.outcome = outcome
        for record in found:
            self._end([record] if record.beside is None else record.beside)

    def _end_here(self) -> None:
        place = _unit_or_attempt()
        self._end([] if place is None else self._of.get(place, []))

    def _end(self, records: list[_Record]) -> None:
        """Write these rows next: no transaction of theirs is open."""
        ended = [one for one in records if self._open.pop(id(one.entry), None) is not None]
        records.clear()
        if not ended:
            return
        with self._changing:
            room = max(0, _MOST - len(self._waiting))
            self._waiting.extend(ended[:room])
            self._lose(len(ended[room:]), "too many wait to be written")
            if self.writer is None or not self.writer.is_alive():  # in a fork it is not
                self.writer = threading.Thread(target=self._write_all, name="optilock-conflicts")
                try:
                    self.writer.start()
                except RuntimeError:  # the interpreter ends
                    self.writer = None
                    self._lose(len(self._waiting), "no thread can be started")
                    self._waiting.clear()

    # -- the thread --------------------------------------------------------------------------------

    def _write_all(self) -> None:
        events.muted.set(True)
        while records := self._next():
            try:
                rows = [self._row(one) for one in records]
                send = partial(_insert, rows=rows)
                retrying().call(on_engine, self._engine, send, call=_CALL)
            except Exception as error:  # its text may have values
                self._lose(len(records), type(error).__name__)

    def _next(self) -> list[_Record]:
        with self._changing:
            count = min(len(self._waiting), _BATCH)
            if not count:
                self.writer = None
            return [self._waiting.popleft() for _ in range(count)]

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        if count:
            _log.warning(
                "%d conflicts are not in the log (%s). It needs the table %s:"
                ' op.create_optilock_tables("conflicts").',
                count,
                why,
                conflicts.name,
            )

    def _row(self, record: _Record) -> dict[str, Any]:
        entry = record.entry
        token, author = entry.token or "", getattr(entry.model, "__version_author__", "")
        return {
            "occurred_at": record.occurred_at,
            "table_name": _text(entry.table or entry.model.__name__),
            "model": _text(entry.model.__name__),
            "identity": _text(json.dumps(as_json(entry.identity))),
            "action": entry.action,
            "kind": entry.kind,
            "reason": record.reason,
            "unit": _text(record.unit),
            "conflicting": sorted(entry.conflicting),
            "original_version": _text(entry.original.get(token)),
            "database_version": _text((entry.database or {}).get(token)),
            "author": _text(entry.changes.get(author)),
            "changed_by": _text(entry.changed_by),
            "outcome": record.outcome or "raised",
            "resolver": _text(record.resolver),
            "column_values": self._column_values(entry),
        }

    def _column_values(self, entry: Entry[Any]) -> dict[str, Any] | None:
        sides = {"original": entry.original, "current": entry.current, "database": entry.database}
        return {
            one.key: {
                side: as_json(of[one.key])
                for side, of in sides.items()
                if of is not None and one.key in of
            }
            for one in self._values
            if one.class_ in entry.model.__mro__
        } or None


_current: _ConflictLog | None = None


def _unit_or_attempt() -> Any:
    """Return the innermost unit that runs here, or the attempt of a retry without one."""
    units = units_around()
    return units[-1] if units else current_attempt()


def _entries_of(error: BaseException | None) -> Iterator[Entry[Any]]:
    """Yield the entries of a conflict, and of one that the program has translated."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ConcurrencyError):
            yield from error.entries
        error = error.__cause__ or error.__context__


def _insert(engine: Engine, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(conflicts), rows)


def _text(value: Any) -> str | None:
    """Return a text that every database takes."""
    return None if value is None else str(as_json(value)).replace("\0", "")[:LONGEST]
