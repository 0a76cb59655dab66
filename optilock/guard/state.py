"""What optilock knows of one watched session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session, SessionTransaction
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import Attempt
from optilock.deletes import DeletePolicies, check_on_delete
from optilock.guard.promises import Promises, places_of
from optilock.guard.writes import Write
from optilock.guarded import KNOWN, Still
from optilock.mapping.keys import Place
from optilock.resolvers import OnConflict, check_on_conflict
from optilock.seen import Doubt, moved_by_us

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

#: Attributes of a session class: what was said to ``watch``.
RESOLVER = "_optilock_on_conflict"
ON_DELETE = "_optilock_on_delete"

__all__ = [
    "ON_DELETE",
    "RESOLVER",
    "Watched",
    "options",
    "watched",
]


@dataclass(frozen=True, eq=False)
class Stated:
    """An UPDATE statement of the session."""

    #: The base mapper of the rows that it may have moved.
    mapper: Mapper[Any]
    #: The versions that the session's objects of these rows held before it.
    held: dict[InstanceState[Any], Any]
    #: How many writes of flushes came before it.
    sent: int
    #: Promised rows that it found in the promised version, and has moved or deleted.
    rows: set[Place] = field(default_factory=set)


class Watched:
    """Kept on the session, for as long as the session lives."""

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
    #: A savepoint is being released.
    releasing: bool = False
    #: A flush is running; ``flush`` is there once it has something to do.
    flushing: bool = False
    flush: Flush | None = None
    #: What was not yet written when the transaction failed.
    wanted: list[Attempt] | None = None
    #: Objects of compared rows that the running transaction has written.
    compared: frozenset[Any] = frozenset()
    #: Connections whose guard triggers have been told of it, for the running flush.
    announced: tuple[Connection, ...] = ()
    #: The versions, before the transaction's own writes, of rows that were just rolled back.
    before: Mapping[Any, Any] = MappingProxyType({})
    _root: SessionTransaction | None = None

    def __init__(self, on_conflict: OnConflict, on_delete: DeletePolicies) -> None:
        #: The resolver, or mapping of classes to resolvers, for this session.
        self.on_conflict = on_conflict
        #: The same for deletes: a policy, or a mapping of classes to policies.
        self.on_delete = on_delete
        #: The ``no_bump`` blocks that are open.
        self.still: tuple[Still, ...] = ()
        self.connections, self.sent, self.undone = [], [], []
        #: Objects whose version a statement has moved: attribute, version before, and after.
        self.moved: list[tuple[InstanceState[Any], str, Any, Any]] = []
        #: The UPDATE statements of the running transaction.
        self.stated: list[Stated] = []
        self._savepoints: dict[SessionTransaction, tuple[int, int, int]] = {}

    def in_savepoint(self, transaction: SessionTransaction) -> None:
        """Note how far the writes were when the savepoint began."""
        self._savepoints.setdefault(transaction, self._now())

    def _now(self) -> tuple[int, int, int]:
        return len(self.sent), len(self.moved), len(self.stated)

    def written(self) -> set[Place]:
        """Rows that the transaction has written, each in the version that it had promised."""
        found = places_of(self.sent)
        for stated in self.stated:
            found |= stated.rows
        return found

    def doubts(self, savepoint: SessionTransaction | None) -> dict[Mapper[Any], Doubt]:
        """What the UPDATE statements that are rolled back now leave in doubt."""
        start, _, first = self._savepoints.get(savepoint, self._now()) if savepoint else (0, 0, 0)
        found: dict[Mapper[Any], Doubt] = {}
        for stated in self.stated[first:]:
            if stated.mapper not in found:
                earlier = places_of(self.sent[start : stated.sent])
                found[stated.mapper] = Doubt(stated.held, earlier)
        del self.stated[first:]
        return found

    def take_back(self, savepoint: SessionTransaction | None) -> list[Write]:
        """The writes that are rolled back now, with the savepoint or with the transaction."""
        if savepoint is None:
            self._move_back(0)
            return [*self.sent, *self.undone]
        start, moved, _ = self._savepoints.get(savepoint, self._now())
        self._move_back(moved)
        undone = self.sent[start:]
        self.undone += undone
        del self.sent[start:]
        return undone

    def _move_back(self, start: int) -> None:
        for state, token, before, after in reversed(self.moved[start:]):
            moved_by_us(state, token, after, before)
        del self.moved[start:]

    def in_transaction(self, transaction: SessionTransaction) -> None:
        """Forget what belongs to an earlier transaction."""
        while (parent := transaction.parent) is not None:
            transaction = parent
        if transaction is not self._root:
            self._root = transaction
            self.connections, self.sent, self.undone = [], [], []
            self._savepoints, self.moved, self.stated = {}, [], []
            self.compared, self.autocommitting = frozenset(), ()
            if self.promises:
                self.promises.in_transaction(transaction)


def watched(session: Session) -> Watched:
    """What optilock knows of ``session``."""
    known: Watched | None = session.__dict__.get(KNOWN)
    if known is None:
        cls = type(session)
        known = Watched(getattr(cls, RESOLVER, None), getattr(cls, ON_DELETE, None))
        session.__dict__[KNOWN] = known
    return known


def options(session: Session, *, on_conflict: Any = None, on_delete: Any = None) -> None:
    """Set what one session does about conflicts; it goes before what was said to ``watch``."""
    known = watched(session)
    if on_conflict is not None:
        known.on_conflict = check_on_conflict(on_conflict)
    if on_delete is not None:
        known.on_delete = check_on_delete(on_delete)
