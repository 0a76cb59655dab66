"""The record of one watched session, its parts about the flush and the statement that run."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import sqlalchemy
from sqlalchemy import Connection, Select
from sqlalchemy.orm import Session, SessionTransaction

from optilock._mapped import Place
from optilock._watched.session.transaction import TransactionRecord
from optilock._watched.session.values import NoBumpBlock, RowsOfTransaction
from optilock.conditions.demands import Demand, Demands, register_for_all_sessions
from optilock.conditions.write import NO_CHECKS, Checks, SingleWrite, Write
from optilock.dialects import Database
from optilock.errors import ConfigurationError
from optilock.resolvers.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.resolvers.rules import check_on_conflict

#: An attribute of a session class: it is watched.
GUARD_KEY = "_optilock_guarded"
#: An attribute of a session: its :class:`SessionRecord`, once there is something.
RECORD_KEY = "_optilock_watched"
#: Attributes of a session class: options of ``watch``.
RESOLVER_KEY = "_optilock_on_conflict"
ON_DELETE_KEY = "_optilock_on_delete"
#: An attribute of a session class, or of one session: unguarded writes are refused (True), sent
#: (False), or sent with a warning (None).
STRICT_KEY = "_optilock_strict"
#: An attribute of a session: the :class:`Reads` of a unit with a strategy.
READS_KEY = "_optilock_reads"

#: An attribute of a connection: the session that follows it, or that there are several.
_FOLLOWER = "_optilock_follower"
_SEVERAL = object()


class Owner(Protocol):
    """The owner of a session: a unit of work."""

    @property
    def read_only(self) -> bool:
        """Return whether the database refuses every write of the transaction."""

    @property
    def name(self) -> str | None:
        """The name in events, which all units of one function have."""

    @property
    def has_key(self) -> bool:
        """Return whether its work is stored once, however often it runs."""

    @property
    def hurries(self) -> bool:
        """Return whether it runs again, and locks first, if a write has to wait for a lock."""

    @property
    def gives_way(self) -> bool:
        """Return whether it runs again if it has to wait for a lock."""

    def connected(self, connection: Connection, database: Database) -> None:
        """Note that the transaction has begun on one more connection."""

    def committing_now(self) -> None:
        """COMMIT begins."""

    def savepoint_undone(self, savepoint: object) -> None:
        """Note that a savepoint was rolled back."""


class Ending(Protocol):
    """Sends the last writes of a transaction together with its end."""

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Database,
        alone: SingleWrite | None = None,
        *,
        locked: bool = False,
        checks: Checks = NO_CHECKS,
    ) -> list[Write] | None:
        """Write these rows, of one table each, and commit; or else return those that missed.

        ``None``: nothing was written, and the rows that miss are unknown. In both cases the
        transaction goes on, or has begun again.

        Args:
            alone: the statement of a single row.
            locked: the rows are locked already, in the expected version, so that none should miss.
            checks: of promised rows.
        """

    def over(self) -> None:
        """Note that the transaction has ended, by ``send`` or in another way."""

    @property
    def carries_checks(self) -> bool:
        """Return whether ``send`` also checks promised rows."""

    @property
    def stored(self) -> bool:
        """Return whether COMMIT was carried out along with writes."""

    @property
    def unanswered(self) -> bool:
        """Return whether COMMIT was sent along with writes, and its answer was lost."""


class Reads(Protocol):
    """The strategy that locks rows when they are read."""

    def locked(
        self, session: Session, statement: Select[Any], params: Any, options: dict[str, Any]
    ) -> Select[Any]:
        """Return the query with the locks that its rows need."""

    def get(
        self, original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
    ) -> Any:
        """Run ``session.get()`` for a row that the caller does not lock."""

    def locks_scope(self, session: Session, scope: Any) -> bool:
        """Return whether to lock a scope, and not only to read it."""

    def stored(self, session: Session) -> None:
        """COMMIT was carried out; what the session has written is still known."""


class FlushRecord:
    """The flush that runs, in the record of its session."""

    #: A flush is running.
    flushing: bool = False
    #: The guard's :class:`~optilock._watched.guard.records.Flush`, once it has something to do.
    flush: Any = None
    #: The next flush is the last one of its transaction: its writes may go with COMMIT.
    ending_now: bool = False
    #: Objects, and the values assigned to them before the listeners of the flush that runs.
    assigned: dict[Any, dict[str, Any]]
    #: Connections whose guard triggers let versions stay, for the running flush.
    announced: tuple[Connection, ...] = ()

    def announce_last_flush(self) -> None:
        """Note that the next flush is the last one of its transaction."""
        self.ending_now = True

    def begin_last_writes(self) -> None:
        """Note that the last writes are being sent; flushes after them are ordinary ones."""
        self.ending_now = False

    @property
    def is_writing(self) -> bool:
        """Return whether a flush sends its rows; listeners may send statements between them."""
        return self.flush is not None and bool(self.flush.is_writing())


class StatementRecord(FlushRecord):
    """The statement that the session executes, in its record."""

    #: Whether the running statement, whose rows were checked, began inside a flush; ``None``: no
    #: such statement runs.
    began_in_flush: bool | None = None
    #: It runs during a flush, and its rows were checked for what the session demands.
    demands_checked: bool = False

    @property
    def in_statement(self) -> bool:
        """Return whether ``session.execute()`` runs a statement whose rows were checked.

        A flush that begins inside of it is not part of it, and a statement inside of that flush is
        one of its own.
        """
        return self.began_in_flush is self.flushing

    def run_statement(self, *, checked: bool) -> tuple[bool | None, bool]:
        """Begin a statement, whose rows were ``checked``; return the state around it."""
        around = self.began_in_flush, self.demands_checked
        self.began_in_flush = self.flushing if checked else None
        return around

    def run_in_flush(self) -> None:
        """Note that a listener of the flush sends the statement, and its demands were checked."""
        self.demands_checked = True

    def statement_over(self, around: tuple[bool | None, bool]) -> None:
        """Return to the state around a statement."""
        self.began_in_flush, self.demands_checked = around


class SessionRecord(TransactionRecord, StatementRecord):
    """The record of a session, kept on it for as long as it lives.

    Its parts are one object, because most questions are asked for every row:
    :class:`~optilock._watched.session.transaction.TransactionRecord`, :class:`FlushRecord` and
    :class:`StatementRecord`. A field of each is written by one file
    (``checks/project/test_session_records.py``).
    """

    #: The resolver, or mapping of classes to resolvers, for this session.
    on_conflict: OnConflict = None
    #: The same for deletes: a policy, or a mapping of classes to policies.
    on_delete: DeletePolicies = None
    #: The ``no_bump`` blocks that are open.
    no_bump_blocks: tuple[NoBumpBlock, ...] = ()
    #: What must be true of every row that the session writes.
    demands: Demands | None = None
    #: The conditions that the unit requires: of every row (``True``), or not even that of a request
    #: (``False``).
    require_conditions: bool | None = None
    #: The unit of work that the session was made for, while it runs.
    owner: Owner | None = None
    #: Sends the transaction's last writes together with its end.
    ending: Ending | None = None
    #: Called when the session is garbage-collected in an open transaction, which is rolled back.
    abandoned: Callable[[SessionRecord, SessionTransaction], None] | None = None
    #: Connections that the program has asked for, and the functions that answer on them.
    followed: dict[Connection, dict[str, Any]]
    #: Stands for the session on a connection that it shares with others.
    key_as_follower: object

    def __del__(self) -> None:
        root, abandoned = self.root, self.abandoned
        if abandoned is not None and root is not None and not self.decided:
            with suppress(Exception):
                abandoned(self, root)

    @property
    def hurries(self) -> bool:
        """Return whether a unit runs again rather than to wait for a lock that it needs late."""
        return self.owner is not None and self.owner.hurries

    @property
    def gives_way(self) -> bool:
        """Return whether a unit runs again rather than to wait for a lock out of order."""
        return self.owner is not None and self.owner.gives_way

    def has_locked(self, writes: Sequence[Write]) -> bool:
        """Return whether the transaction has locked all of these rows as it read them.

        That is unknown once a statement was sent next to queries and the rows of flushes: it may
        have gone back to a savepoint, which gives locks back.
        """
        locked = self.locked
        if not locked or self.sent_more:
            return False
        return all(write.places()[0] in locked for write in writes)

    def ended(self) -> None:
        """End the transaction, which was committed or rolled back."""
        self._ended()
        if self.followed:
            self._follow_no_more()

    def _follow_no_more(self) -> None:
        for connection, covers in self.followed.items():
            connection.__dict__.pop(_FOLLOWER, None)
            for name, cover in covers.items():
                if connection.__dict__.get(name) is cover:
                    delattr(connection, name)
        self.followed = {}

    def follows(self, connection: Connection) -> bool:
        """Return whether the session's objects follow statements on the connection.

        They do not once another session sends on it, too: a statement may be of either.
        """
        return connection.__dict__.get(_FOLLOWER) is self.key_as_follower

    def sends_on(self, connection: Connection, *, following: bool = False) -> None:
        """Note that a statement of this session is sent on the connection, or may be."""
        follower = connection.__dict__.get(_FOLLOWER)
        if follower is None and following:
            connection.__dict__[_FOLLOWER] = self.key_as_follower
        elif follower is not None and follower is not self.key_as_follower:
            connection.__dict__[_FOLLOWER] = _SEVERAL


class RecordAttribute:
    """The record as an attribute of guarded sessions, made at its first use."""

    def __get__(self, session: Session, cls: type[Session]) -> SessionRecord:
        known = session.__dict__[RECORD_KEY] = SessionRecord()
        known.on_conflict = getattr(cls, RESOLVER_KEY, None)
        known.on_delete = getattr(cls, ON_DELETE_KEY, None)
        # No __init__ of its own: each session would pay for one more call.
        known.key_as_follower, known.followed = object(), {}
        return known


_RECORD = RecordAttribute()
#: :func:`session_record` for the session of a guarded class. A C function once the record exists.
record_of: Callable[[Session], SessionRecord] = attrgetter(RECORD_KEY)
#: Return whether the session of a guarded class refuses unguarded writes; ``None``: it warns.
is_strict: Callable[[Session], bool | None] = attrgetter(STRICT_KEY)


def session_record(session: Session) -> SessionRecord:
    """Return the record of ``session``, watched or not."""
    record: SessionRecord | None = session.__dict__.get(RECORD_KEY)
    return _RECORD.__get__(session, type(session)) if record is None else record


def demand(session: Session, wanted: Demand) -> None:
    """Demand that ``wanted`` is true of every row that the session writes from here on.

    A part of a unit calls this for the unit's sessions; code with a watched session may, too.

    Raises:
        ConfigurationError: the session is not watched; ``wanted`` is no demand, has no values, or
            names a value as another demand of the session does.
    """
    if not is_watched(session):
        raise ConfigurationError(
            f"demand() needs a watched session, and {type(session).__name__} is not one: its writes"
            " would not be checked. Use optilock.watch() on its factory, or a unit of work."
        )
    own_demands(session).add(wanted)


def demands_of(session: Session) -> Demands | None:
    """Return the demands on rows that the session writes, be it watched or not."""
    return session_record(session).demands if is_watched(session) else SessionRecord.demands


def own_demands(session: Session) -> Demands:
    """Return the demands of a watched session, to which others may be added."""
    record = session_record(session)
    demands: Demands | None = record.__dict__.get("demands")
    if demands is None:
        demands = record.demands = Demands()
    return demands


def demand_always(wanted: Demand) -> None:
    """Demand that ``wanted`` is true of every row that any session writes from here on."""
    if register_for_all_sessions(wanted):
        SessionRecord.demands = Demands()


def check_strict(strict: Any) -> bool | None:
    """Return ``strict``, checked.

    Raises:
        ConfigurationError: it is neither True nor False, nor None.
    """
    if strict is not None and not isinstance(strict, bool):
        raise ConfigurationError(f"strict={strict!r} is neither True nor False.")
    return strict


def options(
    session: Session,
    *,
    on_conflict: Any = None,
    on_delete: Any = None,
    strict: bool | None = None,
) -> None:
    """Set the options of one session, which override those of ``watch``.

    ``strict=False`` leaves a strict session strict.
    """
    if strict or (strict is False and is_strict(session) is None):
        session.__dict__[STRICT_KEY] = strict
    record = session_record(session)
    if on_conflict is not None:
        record.on_conflict = check_on_conflict(on_conflict)
    if on_delete is not None:
        record.on_delete = check_on_delete(on_delete)


def note_merged(session: Session, place: Place) -> None:
    """Note that the row gets values merged with the version that its client has seen."""
    record = session_record(session)
    if record.merged is None:
        record.merged = RowsOfTransaction()
    record.merged.in_transaction(session.get_transaction())
    record.merged[place] = None


def settle_row(session: Session, place: Place, resolver: Any) -> None:
    """Let this resolver settle conflicts of the row until the transaction ends."""
    record = session_record(session)
    if record.settled_by is None:
        record.settled_by = RowsOfTransaction()
    record.settled_by.in_transaction(session.get_transaction())
    record.settled_by[place] = resolver


def is_watched(session: Session) -> bool:
    """Return whether the session's flushes are guarded."""
    return hasattr(type(session), GUARD_KEY)


def keeps_version(session: Session, obj: object) -> bool:
    """Return whether an open ``no_bump`` block covers the object's row."""
    record = session.__dict__.get(RECORD_KEY)
    return record is not None and any(still.covers(obj) for still in record.no_bump_blocks)


# -- the line of the application that a warning points to ------------------------------------------


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the application's line, and not of one of SQLAlchemy's or ours."""
    frame = frame_of_caller()
    if frame is None:  # a thread that SQLAlchemy or optilock has started
        warnings.warn(text, category, stacklevel=2)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__") or "<unknown>",
        names.setdefault("__warningregistry__", {}),
    )


def frame_of_caller() -> FrameType | None:
    """Return the innermost frame of the application, also of a task behind an ``AsyncSession``."""
    frame: FrameType | None = inspect.currentframe()
    greenlet: Any = sys.modules.get("greenlet")
    current = None if greenlet is None else greenlet.getcurrent()
    while frame is not None and _is_inside(frame.f_code.co_filename):
        frame = frame.f_back
        if frame is None and current is not None:  # SQLAlchemy runs it in a greenlet
            current = current.parent
            frame = None if current is None else current.gr_frame
    return frame


#: The folders of the two packages, as ``skip_file_prefixes`` of Python 3.12 takes them.
_FOLDERS = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parents[2], *sqlalchemy.__path__)
)


def _is_inside(path: str) -> bool:
    return path.startswith((*_FOLDERS, "<sqlalchemy "))  # and its decorators
