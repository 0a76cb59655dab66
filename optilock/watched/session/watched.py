"""What optilock knows of one watched session."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol

from sqlalchemy import Connection, Select
from sqlalchemy.orm import Session, SessionTransaction

from optilock.conditions.demands import Demand, Demands, stand
from optilock.conditions.write import Alone, Write
from optilock.dialects import Database
from optilock.errors import ConfigurationError
from optilock.mapped import Place
from optilock.resolvers.resolution import DeletePolicies, OnConflict, check_on_delete
from optilock.resolvers.rules import check_on_conflict
from optilock.undocumented.flushes import nested_transaction, transaction_of
from optilock.watched.session.records import OfOneTransaction, Promises, Still
from optilock.watched.session.written import Written

#: An attribute of a session class: ``watch`` was called for it.
GUARDED = "_optilock_guarded"
#: An attribute of a session: its :class:`Watched`, once there is something.
KNOWN = "_optilock_watched"
#: Attributes of a session class: what was said to ``watch``.
RESOLVER = "_optilock_on_conflict"
ON_DELETE = "_optilock_on_delete"
#: An attribute of a session class, or of one session: no row without a version is changed.
STRICT = "_optilock_strict"
#: An attribute of a session: the :class:`Reads` of a unit with a strategy.
READS = "_optilock_reads"

#: An attribute of a connection: the session that follows it, or that there are several.
_FOLLOWER = "_optilock_follower"
_SEVERAL = object()


class Owner(Protocol):
    """Whose session it is: a unit of work."""

    @property
    def read_only(self) -> bool:
        """Does the database refuse every write of the transaction?"""

    @property
    def hurries(self) -> bool:
        """Does it run again, and lock before, if one of its writes has to wait for a lock?"""

    def connected(self, connection: Connection, database: Database) -> None:
        """The transaction has begun on one more connection."""

    def committing_now(self) -> None:
        """COMMIT is asked for."""


class Ending(Protocol):
    """Sends the last writes of a transaction together with its end."""

    def send(
        self,
        connection: Connection,
        together: Sequence[list[Write]],
        database: Database,
        alone: Alone | None = None,
        *,
        locked: bool = False,
    ) -> list[Write] | None:
        """Write these rows, of one table each, and commit; or else return those that missed.

        A single row may have a statement of its own, ``alone``. Are the rows ``locked`` already, as
        they are expected to be, so that none should miss? None: nothing was written, and nobody
        knows which rows miss. In both cases the transaction goes on, or has begun anew.
        """

    def over(self) -> None:
        """The transaction has ended, by this or in another way."""

    @property
    def stored(self) -> bool:
        """Was COMMIT carried out along with writes?"""

    @property
    def unanswered(self) -> bool:
        """Was COMMIT sent along with writes, and lost with its answer?"""


class Reads(Protocol):
    """Who decides which rows are locked when they are read."""

    def locked(
        self, session: Session, statement: Select[Any], params: Any, options: dict[str, Any]
    ) -> Select[Any]:
        """The query with the locks that its rows need."""

    def get(
        self, original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
    ) -> Any:
        """``session.get()`` of a row that the caller does not lock himself."""

    def stored(self, session: Session) -> None:
        """COMMIT was carried out; what the session has written is still known."""


class Watched(Written):
    """Kept on the session, for as long as the session lives."""

    #: The unit of work that the session was made for, while it runs.
    owner: Owner | None = None

    #: How the transaction's last writes may go with its end; is the next flush the last one?
    ending: Ending | None = None
    ending_now: bool = False
    #: The session's connections in the running transaction.
    connections: list[Connection]
    #: Those of them on which every statement commits by itself.
    autocommitting: tuple[Connection, ...] = ()
    #: What must still be true of rows at the end of the transaction.
    promises: Promises | None = None
    #: Rows that the transaction has locked as it read them, and in which version.
    locked: dict[Place, Any] | None = None
    #: Rows whose last writer wins, whatever the resolvers say.
    overwritten: OfOneTransaction[None] | None = None
    #: Rows that were merged with what their client has seen.
    merged: OfOneTransaction[None] | None = None
    #: What must be true of every row that the session writes.
    demands: Demands | None = None
    #: The transaction has locked rows before it has written any: others may wait for it.
    holds_locks: bool = False
    #: The transaction has a limit for waits, which would be that of whoever goes on with it.
    waits_briefly: bool = False
    #: Something may have been sent besides queries and the rows of flushes.
    sent_more: bool = False
    #: A savepoint is being released.
    releasing: bool = False
    #: A flush is running; ``flush`` is the guard's record of it, once it has something to do.
    flushing: bool = False
    flush: Any = None
    #: Our sides of the rows that were not yet written when the transaction failed.
    wanted: list[Any] | None = None
    #: What a later attempt of a retry has read first of rows that an attempt before it wanted to
    #: write (:mod:`optilock.watched.guard.repeats`).
    judged: dict[Any, Any] | None = None
    #: Called if the session is collected as garbage inside of a transaction, which then comes to
    #: nothing.
    abandoned: Callable[[Watched, SessionTransaction], None] | None = None
    #: The session itself sends a statement, whose rows it has looked at.
    stating: bool = False
    #: It does so during a flush, and what is demanded was asked of these rows.
    asked: bool = False
    #: Connections whose guard triggers have been told of it, for the running flush.
    announced: tuple[Connection, ...] = ()
    #: The versions, before the transaction's own writes, of rows that were just rolled back.
    before_rollback: Mapping[Any, Any] = MappingProxyType({})
    #: The running transaction, once it has begun on a connection.
    root: SessionTransaction | None = None
    #: What the unit says of conditions: for every row; ``False``: not even that of a request.
    require_conditions: bool | None = None
    #: What the transaction has sent, where a condition is demanded of it.
    conditions: Any = None
    #: Objects have left that wait for the outcome.
    awaited: bool = False

    def __init__(self, on_conflict: OnConflict, on_delete: DeletePolicies) -> None:
        #: The resolver, or mapping of classes to resolvers, for this session.
        self.on_conflict = on_conflict
        #: The same for deletes: a policy, or a mapping of classes to policies.
        self.on_delete = on_delete
        #: The ``no_bump`` blocks that are open.
        self.still: tuple[Still, ...] = ()
        # What has been written: here, because each session would pay for a call.
        self.sent, self.undone, self.moved, self.stated, self.departed = [], [], [], [], []
        self._flushed, self.added_to = set(), set()
        self.undone_before, self._savepoints = {}, {}
        self.connections = []
        #: Stands for the session on a connection that it shares with others.
        self._me = object()
        #: Connections that somebody has asked for, and how they answer.
        self.followed: dict[Connection, dict[str, Any]] = {}
        #: The transactions of the connections.
        self._begun: list[Any] = []

    def __del__(self) -> None:
        root, abandoned = self.root, self.abandoned
        if abandoned is not None and root is not None and not self.decided:
            with suppress(Exception):
                abandoned(self, root)

    @property
    def hurries(self) -> bool:
        """Is a unit of work to run again rather than to wait for a lock that it needs late?

        Not one whose writes may go with its end, which have a limit of their own.
        """
        return self.owner is not None and self.ending is None and self.owner.hurries

    @property
    def is_writing(self) -> bool:
        """Is a flush sending its rows? Its listeners may send statements between them."""
        return self.flush is not None and bool(self.flush.is_writing())

    def has_locked(self, writes: Sequence[Write]) -> bool:
        """Has the transaction locked all of these rows as it read them?

        Nobody knows once a statement was sent beside queries and the rows of flushes: it may have
        gone back to a savepoint, which gives locks back.
        """
        locked = self.locked
        if not locked or self.sent_more:
            return False
        return all(write.places()[0] in locked for write in writes)

    def transactions(self) -> Iterable[SessionTransaction]:
        return self._savepoints if self.root is None else (self.root, *self._savepoints)

    def connected(self, connection: Connection) -> None:
        """A connection of the running transaction."""
        self.connections.append(connection)
        self._begun.append(nested_transaction(connection) or transaction_of(connection))

    def goes_on(self) -> bool:
        """Does the session leave open what others have begun, and what it wrote in that?"""
        return any(begun is not None and begun.is_active for begun in self._begun)

    def ended(self) -> None:
        """The transaction is over, whatever came of it."""
        self.decided = True
        self.departed, self._begun, self.root = [], [], None
        self.autocommitting = ()
        if self.conditions is not None:
            self.conditions.over()
            self.conditions = None
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
            self.judged = None
            if self.promises is not None:
                self.promises.in_transaction(root)
            self.locked = None
            self.holds_locks = False
            for said in (self.overwritten, self.merged):
                if said:
                    said.in_transaction(root)


class Record:
    """The record as an attribute of guarded sessions: made when somebody first asks for it."""

    def __get__(self, session: Session, cls: type[Session]) -> Watched:
        known = Watched(getattr(cls, RESOLVER, None), getattr(cls, ON_DELETE, None))
        session.__dict__[KNOWN] = known
        return known


_RECORD = Record()
#: :func:`watched` for the session of a guarded class: no call of Python once the record is there.
known_of: Callable[[Session], Watched] = attrgetter(KNOWN)
#: Does the session of a guarded class refuse to change rows without a version?
is_strict: Callable[[Session], bool] = attrgetter(STRICT)


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


def check_strict(strict: Any) -> bool:
    """``strict`` as it was given.

    Raises:
        ConfigurationError: it is neither True nor False.
    """
    if not isinstance(strict, bool):
        raise ConfigurationError(f"strict={strict!r} is neither True nor False.")
    return strict


def options(
    session: Session, *, on_conflict: Any = None, on_delete: Any = None, strict: bool = False
) -> None:
    """Set what one session does about conflicts; it goes before what was said to ``watch``.

    ``strict`` makes the session strict, and does not take back that it is.
    """
    if strict:
        session.__dict__[STRICT] = True
    known = watched(session)
    if on_conflict is not None:
        known.on_conflict = check_on_conflict(on_conflict)
    if on_delete is not None:
        known.on_delete = check_on_delete(on_delete)


def note_merged(session: Session, place: Place) -> None:
    """The row gets what was merged with the version that its client has seen."""
    known = watched(session)
    if known.merged is None:
        known.merged = OfOneTransaction()
    known.merged.in_transaction(session.get_transaction())
    known.merged[place] = None


def is_watched(session: Session) -> bool:
    """Does the guard see this session's flushes?"""
    return hasattr(type(session), GUARDED)


def stands_still(session: Session, obj: object) -> bool:
    """Is there a ``no_bump`` block open for the object's row?"""
    known = session.__dict__.get(KNOWN)
    return known is not None and any(still.covers(obj) for still in known.still)


# -- the line of the application that a warning points to ------------------------------------------


def level_of_caller() -> int:
    """Return the ``stacklevel=`` of :func:`warnings.warn` for the calling function.

    The warning then points to the application's line, and not to one of SQLAlchemy's or ours.
    """
    here = inspect.currentframe()
    level, frame = 1, None if here is None else here.f_back
    while frame is not None and frame.f_back is not None and _inside(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def _inside(path: str) -> bool:
    path = path.replace("\\", "/")
    return "/sqlalchemy/" in path or ("/optilock/" in path and "/tests/" not in path)
