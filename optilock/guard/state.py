"""What optilock knows of one watched session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, SessionTransaction

from optilock.conflicts import Attempt
from optilock.guard.writes import Write

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["Watched", "is_watched", "options", "watched"]


@dataclass(eq=False)
class Watched:
    """Kept on the session, for as long as the session lives."""

    #: The resolver, or mapping of classes to resolvers, for this session.
    on_conflict: Any = None
    #: The session's connections in the running transaction.
    connections: list[Connection] = field(default_factory=list)
    #: A flush is running; ``flush`` is there once it has something to do.
    flushing: bool = False
    flush: Flush | None = None
    #: Writes of the running transaction, to be read again if the database ends it.
    sent: list[Write] = field(default_factory=list)
    #: What was not yet written when the transaction failed.
    wanted: list[Attempt] | None = None
    _root: SessionTransaction | None = None

    def in_transaction(self, transaction: SessionTransaction) -> None:
        """Forget what belongs to an earlier transaction."""
        while transaction.parent is not None:
            transaction = transaction.parent
        if transaction is not self._root:
            self._root = transaction
            self.connections, self.sent = [], []


def is_watched(session: Session) -> bool:
    """Does the guard see this session's flushes?"""
    return hasattr(type(session), "_optilock")


def watched(session: Session) -> Watched:
    """What optilock knows of ``session``."""
    known: Watched | None = session.__dict__.get("_optilock_watched")
    if known is None:
        known = Watched(_resolver_of(type(session)))
        session.__dict__["_optilock_watched"] = known
    return known


def _resolver_of(cls: type[Session]) -> Any:
    """What was said to ``watch`` for the class, or for the nearest class above it."""
    said = (one.__dict__.get("_optilock") for one in cls.__mro__)
    return next((resolver for resolver in said if resolver is not None), None)


def options(session: Session, *, on_conflict: Any) -> None:
    """Set the resolver of one session; it goes before the one given to ``watch``."""
    from optilock.resolvers import check_on_conflict

    check_on_conflict(on_conflict)
    watched(session).on_conflict = on_conflict
