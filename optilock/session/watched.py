"""What optilock knows of one watched session."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from optilock.conditions.demands import Demand, Demands, stand
from optilock.conditions.write import Write, first_expected, places_of
from optilock.conflicts.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.conflicts.resolvers import check_on_conflict
from optilock.dialects import Database
from optilock.errors import ConfigurationError
from optilock.mapped import Place
from optilock.session.records import (
    Before,
    Departed,
    Doubt,
    Moved,
    OfOneTransaction,
    Point,
    Promises,
    Stated,
    Still,
)
from optilock.undocumented import nested_transaction, transaction_of

#: An attribute of a session class: ``watch`` was called for it.
GUARDED = "_optilock_guarded"
#: An attribute of a session: its :class:`Watched`, once there is something.
KNOWN = "_optilock_watched"
#: Attributes of a session class: what was said to ``watch``.
RESOLVER = "_optilock_on_conflict"
ON_DELETE = "_optilock_on_delete"

#: An attribute of a connection: the session that follows it, or that there are several.
_FOLLOWER = "_optilock_follower"
_SEVERAL = object()


class Owner(Protocol):
    """Whose session it is: a unit of work."""

    def connected(self, connection: Connection, database: Database) -> None:
        """The transaction has begun on one more connection."""

    def committing_now(self) -> None:
        """COMMIT is asked for."""


class Watched:
    """Kept on the session, for as long as the session lives."""

    #: The unit of work that the session was made for, while it runs.
    owner: Owner | None = None

    #: The session's connections in the running transaction.
    connections: list[Connection]
    #: Those of them on which every statement commits by itself.
    autocommitting: tuple[Connection, ...] = ()
    #: Writes of the running transaction, to be read again if the database ends it.
    sent: list[Write]
    #: Writes that a savepoint has taken back.
    undone: list[Write]
    #: What must still be true of rows at the end of the transaction.
    promises: Promises | None = None
    #: Rows whose last writer wins, whatever the resolvers say.
    overwritten: OfOneTransaction[None] | None = None
    #: What must be true of every row that the session writes.
    demands: Demands | None = None
    #: A savepoint is being released.
    releasing: bool = False
    #: A flush is running; ``flush`` is the guard's record of it, once it has something to do.
    flushing: bool = False
    flush: Any = None
    #: Our sides of the rows that were not yet written when the transaction failed.
    wanted: list[Any] | None = None
    #: Called if the session is collected as garbage inside of a transaction, which then comes to
    #: nothing.
    abandoned: Callable[[Watched, SessionTransaction], None] | None = None
    #: Objects of compared rows that the running transaction has written.
    compared: frozenset[Any] = frozenset()
    #: The session itself sends a statement, whose rows it has looked at.
    stating: bool = False
    #: It does so during a flush, and what is demanded was asked of these rows.
    asked: bool = False
    #: Connections whose guard triggers have been told of it, for the running flush.
    announced: tuple[Connection, ...] = ()
    #: The versions, before the transaction's own writes, of rows that were just rolled back.
    before_rollback: Mapping[Any, Any] = MappingProxyType({})
    #: The transaction was committed or rolled back, or none has begun.
    decided: bool = True
    #: The running transaction, once it has begun on a connection.
    root: SessionTransaction | None = None
    #: Objects have left that wait for the outcome.
    awaited: bool = False
    #: Nothing is noted of an earlier transaction.
    _forgotten: bool = True
    _before: tuple[Point, Point, Before] | None = None
    #: The rows of ``sent``, and how many writes of it are counted in.
    _flushed: set[Place]
    _counted: int = 0

    def __init__(self, on_conflict: OnConflict, on_delete: DeletePolicies) -> None:
        #: The resolver, or mapping of classes to resolvers, for this session.
        self.on_conflict = on_conflict
        #: The same for deletes: a policy, or a mapping of classes to policies.
        self.on_delete = on_delete
        #: The ``no_bump`` blocks that are open.
        self.still: tuple[Still, ...] = ()
        self.connections, self.sent, self.undone = [], [], []
        self._flushed = set()
        #: The versions before those.
        self.undone_before: dict[Place, Any] = {}
        #: Objects whose version a statement has moved.
        self.moved: list[Moved] = []
        #: The UPDATE statements of the running transaction.
        self.stated: list[Stated] = []
        #: Stands for the session on a connection that it shares with others.
        self._me = object()
        #: Classes that statements have inserted rows of, since the last savepoint began.
        self.added_to: set[Mapper[Any]] = set()
        #: Connections that somebody has asked for, and how they answer.
        self.followed: dict[Connection, dict[str, Any]] = {}
        #: Who has left the session in the running transaction.
        self.departed: list[Departed] = []
        self._savepoints: dict[SessionTransaction, Point] = {}
        #: The transactions of the connections.
        self._begun: list[Any] = []

    def __del__(self) -> None:
        root, abandoned = self.root, self.abandoned
        if abandoned is not None and root is not None and not self.decided:
            with suppress(Exception):
                abandoned(self, root)

    @property
    def is_writing(self) -> bool:
        """Is a flush sending its rows? Its listeners may send statements between them."""
        return self.flush is not None and bool(self.flush.is_writing())

    def in_savepoint(self, transaction: SessionTransaction) -> None:
        """Note how far the writes were when the savepoint began."""
        self._savepoints.setdefault(transaction, self.now())
        self.added_to.clear()

    def savepoints(self) -> Iterable[SessionTransaction]:
        """Those that are open, the innermost first."""
        return reversed(self._savepoints)

    def savepoint_ended(self, transaction: SessionTransaction) -> Point | None:
        """How far the writes were when it began, if it was neither released nor rolled back."""
        return self._savepoints.pop(transaction, None)

    def transactions(self) -> Iterable[SessionTransaction]:
        return self._savepoints if self.root is None else (self.root, *self._savepoints)

    def connected(self, connection: Connection) -> None:
        """A connection of the running transaction."""
        self.connections.append(connection)
        self._begun.append(nested_transaction(connection) or transaction_of(connection))

    def goes_on(self) -> bool:
        """Does the session leave open what others have begun, and what it wrote in that?"""
        return any(begun is not None and begun.is_active for begun in self._begun)

    def now(self) -> Point:
        return len(self.sent), len(self.moved), len(self.stated)

    def start_of(self, savepoint: SessionTransaction | None) -> Point:
        return (0, 0, 0) if savepoint is None else self._savepoints.get(savepoint, self.now())

    def has_written(self) -> bool:
        """Is there anything that may yet be undone, but for new rows?"""
        return not self.decided and bool(self.sent or self.moved or self.stated or self.compared)

    def move(self, place: Place, before: Any, take_back: Callable[[], None] | None = None) -> None:
        """A statement of the session moved the version of a row; an object of it has followed."""
        self.moved.append(Moved(place, before, self.at(), take_back))

    def at(self) -> int:
        """How many writes of flushes there were in the transaction that runs."""
        return 0 if self.decided else len(self.sent)

    def has_flushed(self, place: Place) -> bool:
        """Has a flush of the transaction written the row? Each write is counted in once."""
        if self._counted < len(self.sent):
            self._flushed |= places_of(self.sent[self._counted :])
            self._counted = len(self.sent)
        return place in self._flushed

    def is_ours(self, place: Place) -> bool:
        """Has the transaction written the row, and in the version that it had promised?"""
        if self.decided:  # what is noted of the transaction before is kept for its error
            return False
        return self.has_flushed(place) or any(place in stated.rows for stated in self.stated)

    def refused(self, places: Collection[Place], start: int) -> None:
        """The flush that began when ``start`` writes were sent has not written these rows."""
        last = enumerate(self.sent[start:], start)
        gone = [number for number, write in last if not places_of([write]).isdisjoint(places)]

        def now(before: int) -> int:
            return before - bisect_left(gone, before)

        for number in reversed(gone):
            del self.sent[number]
        self.moved = [
            Moved(place, before, now(sent), back) for place, before, sent, back in self.moved
        ]
        self.stated = [replace(stated, sent=now(stated.sent)) for stated in self.stated]
        self.departed = [Departed(who, (now(at[0]), *at[1:])) for who, at in self.departed]
        self._savepoints = {one: (now(at[0]), *at[1:]) for one, at in self._savepoints.items()}
        self._before = None

    def doubts(self, savepoint: SessionTransaction | None) -> dict[Mapper[Any], Doubt]:
        """What the UPDATE statements that are rolled back now leave in doubt."""
        start, _, first = self.start_of(savepoint)
        found = self._doubts(start, self.stated[first:])
        del self.stated[first:]
        self.added_to.clear()
        return found

    def _doubts(self, start: int, some: list[Stated]) -> dict[Mapper[Any], Doubt]:
        found: dict[Mapper[Any], Doubt] = {}
        for stated in some:
            known = found.get(stated.mapper)
            if known is None:
                written = places_of(self.sent[start : stated.sent])
                found[stated.mapper] = Doubt(stated.held, written, stated.adds)
            elif known.adds and not stated.adds:
                found[stated.mapper] = Doubt(known.held, known.written)
        return found

    def before(self, start: Point, end: Point) -> Before:
        """What was known of the rows that were written between these points."""
        if self._before is None or self._before[:2] != (start, end):
            versions = self.versions_before(start, end)
            doubts = self._doubts(start[0], self.stated[start[2] : end[2]])
            self._before = start, end, Before(versions, doubts)
        return self._before[2]

    def versions_before(
        self, start: Point, end: Point, more: Iterable[Write] = ()
    ) -> dict[Place, Any]:
        """The versions before the writes, and before statements that moved the row first."""
        found: dict[Place, Any] = {}
        at = start[0]
        for moved in self.moved[start[1] : end[1]]:
            if moved.sent > at:
                first_expected(self.sent[at : moved.sent], found)
                at = moved.sent
            found.setdefault(moved.place, moved.before)
        return first_expected([*self.sent[at : end[0]], *more], found)

    def take_back(self, savepoint: SessionTransaction | None) -> list[Write]:
        """The writes that are rolled back now, with the savepoint or with the transaction."""
        if savepoint is None:
            self._move_back(0)
            return [*self.sent, *self.undone]
        return self.take_back_to(self._savepoints.get(savepoint, self.now()))

    def take_back_to(self, point: Point) -> list[Write]:
        """The writes since ``point``, which are undone."""
        start, moved, stated = point
        for place, version in self.versions_before(point, self.now()).items():
            self.undone_before.setdefault(place, version)
        self._move_back(moved)
        undone = self.sent[start:]
        self.undone += undone
        del self.sent[start:]
        self._flushed, self._counted = set(), 0
        del self.stated[stated:]
        self.added_to.clear()
        return undone

    def _move_back(self, start: int) -> None:
        for moved in reversed(self.moved[start:]):
            if moved.take_back is not None:
                moved.take_back()
        del self.moved[start:]
        self._before = None

    def committed(self) -> None:
        """What was written is stored."""
        self.decided = self._forgotten = True
        self.sent, self._counted, self._before = [], 0, None
        if self._flushed or self._savepoints or self.departed or self.undone or self.undone_before:
            self._flushed, self._savepoints, self.departed = set(), {}, []
            self.undone, self.undone_before = [], {}
        if self.moved or self.stated or self.compared:
            self.moved, self.stated, self.compared = [], [], frozenset()
        if self.added_to:
            self.added_to = set()

    def ended(self) -> None:
        """The transaction is over, whatever came of it."""
        self.decided = True
        self.departed, self._begun, self.root = [], [], None
        self.autocommitting = ()
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
        """May the session's objects follow what is sent on the connection?

        Not once another session sends on it, too: nobody knows whose a statement is.
        """
        return connection.__dict__.get(_FOLLOWER) is self._me

    def sends_on(self, connection: Connection, *, following: bool = False) -> None:
        """A statement of this session goes out on the connection, or somebody may send one."""
        follower = connection.__dict__.get(_FOLLOWER)
        if follower is None and following:
            connection.__dict__[_FOLLOWER] = self._me
        elif follower is not None and follower is not self._me:
            connection.__dict__[_FOLLOWER] = _SEVERAL

    def in_transaction(self, root: SessionTransaction | None) -> None:
        """Forget what belongs to an earlier transaction than this outermost one."""
        if root is not self.root:
            self.root = root
            if not self._forgotten:
                self.committed()
            self.decided = self._forgotten = False
            self.connections, self._begun, self.autocommitting = [], [], ()
            if self.promises:
                self.promises.in_transaction(root)
            if self.overwritten:
                self.overwritten.in_transaction(root)


class Record:
    """The record as an attribute of guarded sessions: made when somebody first asks for it."""

    def __get__(self, session: Session, cls: type[Session]) -> Watched:
        known = Watched(getattr(cls, RESOLVER, None), getattr(cls, ON_DELETE, None))
        session.__dict__[KNOWN] = known
        return known


_RECORD = Record()
#: :func:`watched` for the session of a guarded class: no call of Python once the record is there.
known_of: Callable[[Session], Watched] = attrgetter(KNOWN)


def watched(session: Session) -> Watched:
    """What optilock knows of ``session``."""
    known: Watched | None = session.__dict__.get(KNOWN)
    return _RECORD.__get__(session, type(session)) if known is None else known


def demand(session: Session, wanted: Demand) -> None:
    """From here on, ``wanted`` must be true of every row that the session writes.

    Of the sessions of a unit of work, a part asks for it; a watched session's own code may, too.

    Raises:
        ConfigurationError: nobody watches the session; it is no demand, has no values, or names a
            value as another demand of the session does.
    """
    if not is_watched(session):
        raise ConfigurationError(
            f"demand() got a session that nobody watches ({type(session).__name__}), so nothing"
            " would look at what it writes: use optilock.watch() on its factory, or a UnitOfWork."
        )
    demands_of_its_own(session).add(wanted)


def demands_of(session: Session) -> Demands | None:
    """What is demanded of the rows that the session writes, be it watched or not."""
    return watched(session).demands if is_watched(session) else Watched.demands


def demands_of_its_own(session: Session) -> Demands:
    """The demands of a watched session, to be added to."""
    known = watched(session)
    demands: Demands | None = known.__dict__.get("demands")
    if demands is None:
        demands = known.demands = Demands()
    return demands


def demand_always(wanted: Demand) -> None:
    """From here on, ``wanted`` must be true of every row that any session writes."""
    if stand(wanted):
        Watched.demands = Demands()


def options(session: Session, *, on_conflict: Any = None, on_delete: Any = None) -> None:
    """Set what one session does about conflicts; it goes before what was said to ``watch``."""
    known = watched(session)
    if on_conflict is not None:
        known.on_conflict = check_on_conflict(on_conflict)
    if on_delete is not None:
        known.on_delete = check_on_delete(on_delete)


def is_watched(session: Session) -> bool:
    """Does the guard see this session's flushes?"""
    return hasattr(type(session), GUARDED)


def stands_still(session: Session, obj: object) -> bool:
    """Is there a ``no_bump`` block open for the object's row?"""
    known = session.__dict__.get(KNOWN)
    return known is not None and any(still.covers(obj) for still in known.still)
