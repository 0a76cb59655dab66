"""A row for each conflict, in the table ``optilock_conflicts`` (:mod:`optilock.tables.conflicts`).

::

    from optilock.telemetry import conflict_log

    conflict_log.instrument(engine)                         # or values=[Page.title]

A row has the conflicting row, both versions, both authors, the columns and the outcome, and values
only of the columns that are named. Conflicts of a unit are written after the outermost unit has
ended, so that its rollback does not take them along, and SQLite has no transaction of it open.
Other conflicts are written when their settlement is over. A thread writes, in transactions of its
own, and ends when nothing is left. The work never waits for it, and without a conflict nothing is
sent.

A row that cannot be written is tried again after a transient error. Then it is lost, with a warning
of the logger ``optilock``, and with it the rows that wait. ``resolved`` names a settlement,
also one that was rolled back with a savepoint. Conflicts without an entry (``LinkGone``, write
skew) are not logged.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, insert
from sqlalchemy.orm import QueryableAttribute, Session
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from optilock import events
from optilock.dialects.engines import on_engine
from optilock.errors import CommitOutcomeUnknown, ConfigurationError, Entry, describe
from optilock.serialize import as_json
from optilock.tables.conflicts import LONGEST, conflicts
from optilock.telemetry.switch import Switch
from optilock.unit import parts
from optilock.unit.parts import StandingPart
from optilock.unit.retries import retrying
from optilock.unit.running_units import attempt_number, units_around
from optilock.unit.sessions import owner_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["flush", "instrument", "uninstrument"]

#: In ``session.info`` of a unit: its records.
_RECORDS = "optilock.telemetry.conflicts"
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
        parts.standing = (*parts.standing, log)
        events.concluding = (*events.concluding, log.conclude)
        undo.callback(_remove, log)

    _switch.on(install)


def uninstrument() -> None:
    """Log nothing from here on; what waits, or belongs to an open unit, is still written."""
    _switch.off()


def flush(timeout: float | None = None) -> None:
    """Wait until the conflicts of units that have ended are written, or are lost."""
    if _current is not None and (writer := _current.writer) is not None:
        writer.join(timeout)


def _remove(log: _ConflictLog) -> None:
    parts.standing = tuple(one for one in parts.standing if one is not log)
    events.concluding = tuple(one for one in events.concluding if one != log.conclude)


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
    """A conflicting row, and what has become of it so far."""

    entry: Entry[Any]
    reason: str
    unit: str | None
    outcome: str = ""
    resolver: str | None = None
    attempt: int = field(default_factory=attempt_number)
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class _ConflictLog(StandingPart):
    """The listener, the part of each unit, and the thread that writes."""

    def __init__(self, engine: Any, values: tuple[QueryableAttribute[Any], ...]) -> None:
        self._engine, self._values = engine, values
        #: Records without an outcome, by the ``id`` of the entry, which the record keeps alive.
        self._open: dict[int, _Record] = {}
        self._waiting: deque[_Record] = deque()
        self._changing = threading.Lock()
        self.writer: threading.Thread | None = None

    # -- the outcome of a conflict ----------------------------------------------------------------

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Conflict(entries=entries, reason=reason):
                unit = next(self._units(), None)
                records = [_Record(entry, reason, getattr(unit, "name", None)) for entry in entries]
                self._open.update((id(one.entry), one) for one in records)
                if unit is not None:
                    unit.session.info.setdefault(_RECORDS, []).extend(records)
            case events.Resolved(entries=entries, resolvers=names):
                for entry, name in zip(entries, names, strict=False):
                    if (record := self._open.get(id(entry))) is not None:
                        record.outcome, record.resolver = "resolved", name

    def conclude(self, entries: Iterable[Entry[Any]], outcome: str) -> None:
        """Note the outcome of rows that no resolver has settled; a unit may still fail."""
        found = [self._open[id(entry)] for entry in entries if id(entry) in self._open]
        for record in found:
            record.outcome = record.outcome or outcome
        if next(self._units(), None) is None:
            for record in found:
                del self._open[id(record.entry)]
            self._write(found)

    def after(self, session: Session, error: BaseException | None) -> None:
        records: list[_Record] = session.info.pop(_RECORDS, [])
        failed = None
        if error is not None and not getattr(owner_of(session), "is_stored", False):
            failed = "unknown" if isinstance(error, CommitOutcomeUnknown) else "failed"
        for record in records:
            mine = self._open.pop(id(record.entry), None) is not None  # no inner unit's
            if mine:
                record.outcome = failed or record.outcome or "raised"
        around = next((one for one in self._units() if one.session is not session), None)
        if around is not None and records:
            around.session.info.setdefault(_RECORDS, []).extend(records)
        else:
            self._write(records)

    def _units(self) -> Iterator[Any]:
        """Yield the running units that this log is a part of, the innermost first."""
        return (one for one in reversed(units_around()) if self in getattr(one, "standing", ()))

    def _write(self, records: list[_Record]) -> None:
        """Let the thread write these rows: no transaction of theirs is open."""
        if not records:
            return
        with self._changing:
            room = max(0, _MOST - len(self._waiting))
            self._waiting.extend(records[:room])
            if self.writer is None or not self.writer.is_alive():  # in a fork it is not
                self.writer = threading.Thread(target=self._write_all, name="optilock-conflicts")
                try:
                    self.writer.start()
                except RuntimeError:  # the interpreter ends
                    self.writer, room = None, 0
                    self._waiting.clear()
        _warn_of_lost(len(records[room:]), "too many wait to be written")

    # -- the thread --------------------------------------------------------------------------------

    def _write_all(self) -> None:
        events.muted.set(True)
        while records := self._next():
            try:
                send = partial(_insert, rows=[self._row(one) for one in records])
                retrying().call(on_engine, self._engine, send, call=_CALL)
            except Exception as error:  # its text may have values
                with self._changing:  # they would wait as long, also at the program's end
                    records += self._waiting
                    self._waiting.clear()
                _warn_of_lost(len(records), type(error).__name__)

    def forget(self) -> None:
        """In a fork: what waits, and the thread, are the parent's."""
        self._open, self._waiting, self._changing = {}, deque(), threading.Lock()
        self.writer = None

    def _next(self) -> list[_Record]:
        with self._changing:
            count = min(len(self._waiting), _BATCH)
            if not count:
                self.writer = None
            return [self._waiting.popleft() for _ in range(count)]

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
            "attempt": record.attempt,
            "conflicting": sorted(entry.conflicting),
            "original_version": _text(entry.original.get(token)),
            "database_version": _text((entry.database or {}).get(token)),
            "author": _text(entry.changes.get(author)),
            "changed_by": _text(entry.changed_by),
            "outcome": record.outcome,
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


def _forget_in_fork() -> None:
    if _current is not None:
        _current.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_in_fork)


def _insert(engine: Engine, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(conflicts), rows)


def _warn_of_lost(count: int, why: str) -> None:
    if count:
        _log.warning(
            "%d conflicts are not in the log (%s). Does its database answer, and has it the table"
            ' %s? op.create_optilock_tables("conflicts") creates it.',
            count,
            why,
            conflicts.name,
        )


def _text(value: Any) -> str | None:
    """Return a text that every database takes."""
    if value is None:
        return None
    text = str(as_json(value)).replace("\0", "")[:LONGEST]
    return text.encode("utf-8", "replace").decode()
