"""One writer: its session, the objects it holds, and what it has seen of their rows."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, inspect, update
from sqlalchemy.orm import Session

from checks.history.mappings import Mapping_
from checks.history.model import Base, Fault, Kind, Ledger, Row, Span, Transaction
from optilock import UnitOfWork
from optilock._watched.session.record import session_record

__all__ = ["Author", "Copy", "NotNow", "Settings"]

_MISSING: Any = object()
#: Units that lock some of what they read, and so see what is stored, whatever the snapshot shows.
_LOCKING = ("adaptive", "pessimistic")


class NotNow(Exception):
    """The step makes no sense where the author is: it is left out."""


@dataclass(frozen=True)
class Settings:
    """How the sessions of one author are made."""

    policy: str = "none"
    expire_on_commit: bool = True
    #: ``watch`` came before the mappers were configured.
    early: bool = False
    #: Sessions of units of work.
    unit: bool = False
    #: What they are opened with: "pipelined", "adaptive" or "pessimistic".
    way: str = ""
    #: A listener that writes with Core in a flush: "before_flush" or "after_update".
    listener: str = ""
    autocommit: bool = False
    #: Neither watched nor versioned: for tests of the judge.
    plain: bool = False

    def __str__(self) -> str:
        told = [
            f"{name}={value!r}" for name, value in vars(self).items() if value != _DEFAULTS[name]
        ]
        return ", ".join(told) or "plain settings"


_DEFAULTS = vars(Settings())


@dataclass(eq=False)
class Copy:
    """One object in the program of an author."""

    obj: Any
    row: Row
    kind: Kind
    #: What the object holds, as Python objects: another one was read, or set.
    held: dict[str, Any] = field(default_factory=dict)
    #: Columns that it holds because they were read.
    read: set[str] = field(default_factory=set)
    #: What its author has set.
    assigned: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Span] = field(default_factory=dict)
    #: The oldest revision that something may be remembered from.
    memory: int | None = None
    bases: dict[str, Base] = field(default_factory=dict)
    #: It went through a transaction that was undone, or came from elsewhere.
    doubtful: bool = False
    #: It was read after a statement that was undone: it may hold what was never stored.
    unknown: bool = False
    #: It was written in this transaction before it left the session.
    written_in: Transaction | None = None
    before_resolver: dict[str, Span] | None = None
    #: The version that the object held when it was last looked at.
    version: Any = None

    def base(self) -> Base:
        """What the author has seen of the row up to now."""
        names = self.read & self.seen.keys() - self.kind.ignored
        if not names:
            names = self.read & self.seen.keys()  # the version is read with them
        if not names:
            names = self.seen.keys() - self.kind.ignored or set(self.seen)
        seen = {name: self.seen[name] for name in names}
        memory = min((oldest for oldest, _ in self.seen.values()), default=0)
        return Base(seen, memory if self.memory is None else min(memory, self.memory))

    def pending(self) -> set[str]:
        """Columns that were set, and are not flushed."""
        before, held = inspect(self.obj).committed_state, self.obj.__dict__
        return {
            name for name in self.kind.columns if name in before and before[name] != held.get(name)
        }

    def pending_sum(self) -> int:
        """By how much the counter was changed, and is not flushed."""
        counter, before = self.kind.counter, inspect(self.obj).committed_state
        if counter is None or not isinstance(before.get(counter), int):
            return 0
        return int(self.obj.__dict__.get(counter, before[counter]) - before[counter])

    def twin(self, obj: Any) -> Copy:
        """The same knowledge with another object: a pickle, or a merge."""
        return Copy(
            obj,
            self.row,
            self.kind,
            {name: obj.__dict__[name] for name in self.held if name in obj.__dict__},
            set(self.read),
            dict(self.assigned),
            dict(self.seen),
            self.memory,
            dict(self.bases),
            self.doubtful,
            self.unknown,
        )


class Author:
    """Steps of a history are done by it; :mod:`operations` say how."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        on: Mapping_,
        ledger: Ledger,
        sessions: Any,
        *,
        family: str,
    ) -> None:
        self.name, self.settings, self.on, self.ledger = name, settings, on, ledger
        #: Does the database read from snapshots? Can it begin a savepoint without a BEGIN?
        self.snapshots, self.savepoints = family == "mariadb", family != "sqlite"
        self.family = family
        self.context = contextvars.copy_context()
        self.done = Transaction()
        self.copies: dict[int, Copy] = {}
        self.detached: list[Copy] = []
        self.tags: dict[Row, tuple[str, int]] = {}
        self.nested: list[tuple[Any, Transaction, list[tuple[Copy, dict[str, Span]]]]] = []
        self._sessions = sessions
        self._session: Session | None = None
        self._unit: Any = None
        self._written = 0
        #: The ends of transactions: what is stored is to be looked at.
        self.ended = False
        #: SQL text has ended the transaction, and its session has not been rolled back.
        self.lost = False

    # -- its session ------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        if self._session is None:
            if self.settings.unit:
                unit = UnitOfWork(self._sessions, **self._options())
                self._session = unit.__enter__()
                self._unit = unit
            else:
                self._session = self._sessions()
            if self.settings.listener:
                self._listen(self._session)
        return self._session

    def _options(self) -> dict[str, Any]:
        """Of the unit, as far as the database has them."""
        way, family = self.settings.way, self.family
        if way in ("adaptive", "pessimistic"):
            return {"strategy": way}
        return {way: True} if way == "pipelined" and family == "postgresql" else {}

    @property
    def has_begun(self) -> bool:
        """Is the driver in a transaction? SQLite's begins one with the first write."""
        some = session_record(self._session).connections if self._session is not None else ()
        return any(one.connection.dbapi_connection.in_transaction for one in some if not one.closed)

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def commit(self) -> None:
        if self._unit is None:
            self.session.commit()
            return
        self._leave(None)

    def rollback(self) -> None:
        self._undone()
        if self._unit is None:
            self.session.rollback()
            self.observe()
        else:
            self.let_go()
            self._leave(RuntimeError("the author has changed its mind"))

    def _leave(self, error: BaseException | None) -> None:
        unit, self._unit, self._session = self._unit, None, None
        unit.__exit__(type(error) if error else None, error, None)

    def close(self) -> None:
        self._undone()
        self.let_go()
        if self._unit is not None:
            self._leave(RuntimeError("the author goes away"))
        elif self._session is not None:
            self._session.close()
            self._session = None

    def _undone(self) -> None:
        """What was flushed was never stored."""
        for copy in self.copies.values():
            copy.doubtful |= copy.row in self.done.flushed or self.done.stated
            copy.unknown |= self.done.stated
            self._forget_resolver(copy)
        self.done = Transaction()
        self.nested = []
        self.ended, self.lost = True, False

    @staticmethod
    def _forget_resolver(copy: Copy) -> None:
        if copy.before_resolver is not None:
            copy.seen.update(copy.before_resolver)
            copy.before_resolver = None

    def let_go(self) -> None:
        """The objects will be detached."""
        for copy in self.copies.values():
            if inspect(copy.obj).persistent:
                self.detached.append(copy)
        self.copies = {}

    # -- its objects ------------------------------------------------------------------------------

    def new_value(self) -> str:
        self._written += 1
        return f"{self.name}{self._written}"

    def model(self, row: Row) -> type[Any]:
        return self.on.classes[row[0]]

    def held(self, row: Row) -> Copy:
        """The object that the session has of the row."""
        if self._session is None:
            raise NotNow
        obj = self._session.identity_map.get(
            inspect(self.model(row)).identity_key_from_primary_key((row[1],))
        )
        if obj is None or obj in self._session.deleted:
            raise NotNow
        return self.copy_of(obj, row)

    def take(self, row: Row) -> Copy:
        """The object of the row, read if it is not there."""
        try:
            return self.held(row)
        except NotNow:
            pass
        if row in self.done.deletes or row in self.done.inserts:
            raise NotNow
        obj = self.session.get(self.model(row), row[1])
        if obj is None:
            raise NotNow
        self.observe()
        return self.held(row)

    def copy_of(self, obj: Any, row: Row) -> Copy:
        copy = self.copies.get(id(obj))
        if copy is None:
            known = next((copy for copy in self.detached if copy.obj is obj), None)
            if known is not None:  # it came back with an object that refers to it
                self.detached.remove(known)
                known.doubtful = True
            copy = self.copies[id(obj)] = known or Copy(obj, row, self.on.kind(row[0]))
            for name in copy.pending() if known is not None else ():
                base = copy.bases.get(name, copy.base())
                self.done.edit(row, name, obj.__dict__[name], base)
                self.touch_roots(row)
            if known is not None:
                self.add_up(copy, copy.pending_sum())
        return copy

    def add_up(self, copy: Copy, more: int) -> None:
        """The counter of a row should be so much more, or less again."""
        total = self.done.added.get(copy.row, 0) + more
        if more:
            self.done.added[copy.row] = total

    def attached(self) -> Iterator[Copy]:
        return iter(list(self.copies.values()))

    # -- what it sees -----------------------------------------------------------------------------

    def observe(self, *, locking: bool = False) -> None:
        """Look at what the objects hold now."""
        if self._session is None:
            return
        for obj in list(self._session.identity_map.values()):
            row = self.on.row_of(obj)
            if row is not None and row[0] != "tag":
                self._look(self.copy_of(obj, row), locking)

    def _look(self, copy: Copy, locking: bool) -> None:
        held, fresh, base = copy.obj.__dict__, set(), copy.base()
        for name in copy.kind.columns:
            value = held.get(name, _MISSING)
            if value is _MISSING:
                copy.held.pop(name, None)
                copy.read.discard(name)
            elif copy.held.get(name, _MISSING) is not value:
                copy.held[name] = value
                if copy.assigned.get(name) is not value:
                    fresh.add(name)
                    copy.read.add(name)
        spans = {name: self._read_in(copy, name, held[name], locking) for name in fresh}
        copy.seen.update(self._one_picture(copy, spans, locking))
        if fresh and "version" in held and copy.kind.check == "version":  # read with these
            # A column that was deferred, and is set unread, may be as it was when it was seen.
            known = [oldest for name, (oldest, _) in copy.seen.items() if name not in copy.held]
            known += [] if copy.memory is None else [copy.memory]
            copy.memory = min(known, default=None)
            copy.seen = {name: span for name, span in copy.seen.items() if name in copy.held}
        if copy.held.keys() >= set(copy.kind.columns) - {"body"} and fresh:
            self._remember(copy, fresh, base)
        copy.version = held.get("version")
        self._settled(copy)

    @staticmethod
    def _remember(copy: Copy, fresh: set[str], before: Base) -> None:
        """Who has read the whole row again remembers nothing older, but for the version it held."""
        if fresh >= copy.held.keys():
            kept = copy.version is not None and copy.version == copy.obj.__dict__.get("version")
            copy.seen = {name: copy.seen[name] for name in copy.seen if name in copy.held}
            copy.memory = before.memory if kept else None
            copy.doubtful = copy.unknown = False

    def _read_in(self, copy: Copy, name: str, value: Any, locking: bool) -> Span | None:
        """The revisions in which this value may have been read."""
        row, now = copy.row, self.ledger.now(copy.row)
        snapshots = self.snapshots or self.done.snapshotting
        if snapshots and not locking and self.done.snapshot is None:
            self.done.snapshot = self.ledger.picture()
        if value in self.done.own_values(row, name) or row not in self.ledger.revisions:
            return (now, now)
        stored = self.ledger.stored.get(row)
        if (locking or not snapshots) and stored is not None and stored[name] == value:
            return (now, now)
        span = self.ledger.span(row, name, value)
        if span is None:
            copy.doubtful = True
            if isinstance(value, str) and value.startswith(self.name):
                return None  # a value of its own that was never stored
            raise Fault("dirty", f"{row[0]} {row[1]}.{name} holds {value!r}, which nobody stored")
        return span

    def _one_picture(
        self, copy: Copy, spans: dict[str, Span | None], locking: bool
    ) -> dict[str, Span]:
        """Columns that were read at once are of one revision, that of the snapshot if it can be."""
        known = {name: span for name, span in spans.items() if span is not None}
        oldest = max((oldest for oldest, _ in known.values()), default=0)
        newest = min((newest for _, newest in known.values()), default=0)
        if oldest > newest:
            return known  # they are not, and each is judged by itself
        shown = (self.done.snapshot or {}).get(copy.row, newest)
        written = self.done.flushed | self.done.rows()
        ours = written.union(*(self.ledger.roots_of(row) for row in written))
        newer = any(copy.seen[name][0] > shown for name in copy.read & copy.seen.keys())
        locking = locking or self.settings.way in _LOCKING  # nobody knows which of them was
        if not locking and copy.row not in ours and oldest <= shown and not newer:
            newest = min(newest, shown)
        return dict.fromkeys(known, (oldest, newest))

    def _settled(self, copy: Copy) -> None:
        """A flush has written the object: with a resolver, all of its row was looked at."""
        if copy.row not in self.done.rows() | self.done.roots.keys():
            return
        if self._is_pending(copy):
            return
        self.done.flushed.add(copy.row)
        if self._only_ignored(copy) or self.done.only_adds(copy.row) or self._only_stated(copy):
            return  # written over whatever is there
        if self.settings.policy != "none" and copy.before_resolver is None:
            now = self.ledger.now(copy.row)
            copy.before_resolver = dict(copy.seen)
            copy.seen = dict.fromkeys(copy.seen, (now, now))
            copy.memory = None

    def _is_pending(self, copy: Copy) -> bool:
        """Will the next flush write the row: its object was changed, or a part of an aggregate?"""
        if inspect(copy.obj).modified or copy.obj in self.session.deleted:
            return True
        rows = map(self.on.row_of, (*self.session.dirty, *self.session.deleted))
        return copy.row in self.done.roots and any(
            row is not None and self.on.kind(row[0]).root == copy.row[0] for row in rows
        )

    def _only_ignored(self, copy: Copy) -> bool:
        """Were nothing but ignored columns of the row written?"""
        done, row = self.done, copy.row
        if row in done.touched or row in done.deletes or row in done.roots or row in done.added:
            return False
        return done.edited(row).keys() <= copy.kind.ignored

    def _only_stated(self, copy: Copy) -> bool:
        """Were nothing but statements sent for the row, of which no resolver is asked?"""
        done, row = self.done, copy.row
        if row in done.touched or row in done.deletes or row in done.roots:
            return False
        return all(edit.base is None for edit in done.edited(row).values())

    def expired(self, copy: Copy, names: Any = None, *, read: bool = False) -> None:
        """Edits that are dropped, because they were not flushed; the row is ``read`` again."""
        if read:
            self.done.roots.pop(copy.row, None)
        dropped = copy.pending() & set(names or copy.kind.columns)
        if not names:
            self.add_up(copy, -copy.pending_sum())
        if copy.row in self.done.touched:
            self.done.touched[copy.row] = None
        self.done.drop(copy.row, dropped)
        for name in dropped:
            copy.assigned.pop(name, None)
        for (row, column), edit in self.done.edits.items():
            if (column == copy.kind.parent_column and row == copy.row) or self._belongs_to(
                row, column, copy.row
            ):
                edit.maybe = True
        if not names:
            self.orphaned(copy.row)

    def orphaned(self, parent: Row) -> None:
        """Children and links that are not stored yet may go with what is done to their parent."""
        for row in list(self.done.inserts):
            if self.on.kind(row[0]).parent == parent[0]:
                del self.done.inserts[row]
                self.done.perhaps.add(row)
        for link in [link for link in self.done.links if ("post", link[1][0]) == parent]:  # type: ignore[index]
            del self.done.links[link]
            self.done.perhaps.add(link)

    def _belongs_to(self, row: Row, column: str, parent: Row) -> bool:
        kind = self.on.kind(row[0])
        return column == kind.parent_column and kind.parent == parent[0]

    # -- what it writes ---------------------------------------------------------------------------

    def assign(self, copy: Copy, name: str) -> None:
        base, value, over = copy.base(), self.new_value(), name not in copy.pending()
        # Somebody else had deleted it, too, and the snapshot shows it still: it is edited now.
        self.done.deletes.pop(copy.row, None)
        setattr(copy.obj, name, value)
        self.assigned(copy, name, base, over=over)

    def assigned(self, copy: Copy, name: str, base: Base, *, over: bool = True) -> None:
        known = self.done.edits.get((copy.row, name))
        if not over and known is not None and known.base is not None:
            base = base.after(known.base)
        value = copy.obj.__dict__[name]
        copy.assigned[name] = copy.held[name] = value
        copy.bases[name] = base
        self.done.edit(copy.row, name, value, base, over=over)
        if name not in copy.kind.ignored:
            self.touch_roots(copy.row)

    def touch_roots(self, row: Row) -> None:
        """The roots of a changed row are written with it, in the version that was seen."""
        for root in self.ledger.roots_of(row):
            for copy in self.attached():
                if copy.row == root and copy.seen:
                    self.done.roots[root] = copy.base()

    def statement(self, row: Row, name: str, send: Callable[[str], object]) -> None:
        """``send`` an UPDATE statement that writes a value, whatever was there."""
        value = self.new_value()
        pending = [
            copy.held[name]
            for copy in self.attached()
            if copy.row == row and name in copy.pending()
        ]
        send(value)
        self.done.state(row, name, value, pending)

    def _listen(self, session: Session) -> None:
        """A listener writes ``note`` of the second row whenever it hears of the first one."""
        first, second = self.on.rows[:2]
        if self.on.kind(second[0]).check != "version":
            return
        table = inspect(self.model(second)).base_mapper.local_table

        def write(connection: Any) -> None:
            if second not in self.done.deletes and second in self.ledger.stored:
                what = update(table).where(table.c.id == second[1])
                self.statement(second, "note", lambda v: connection.execute(what.values(note=v)))

        def before_flush(session: Session, *_: Any) -> None:
            if any(self.on.row_of(obj) == first for obj in session.dirty):
                write(session.connection())

        def after_update(obj: Any, connection: Any) -> None:
            if self.on.row_of(obj) == first:
                write(connection)

        if self.settings.listener == "before_flush":
            event.listen(session, "before_flush", before_flush)
        else:
            session.info["after_update"] = after_update
