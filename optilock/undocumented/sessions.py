"""Sessions: what they are to delete and to write, and who listens to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, takewhile
from operator import attrgetter
from typing import Any

from sqlalchemy.orm import Mapper, Session

from optilock.undocumented.objects import State

#: The objects of ``session.deleted``, which makes a new set each time; no call of Python.
marked_deleted: Callable[[Session], Collection[State]] = attrgetter("_deleted")


def last_deleted(session: Session) -> State | None:
    """The object that was added last to ``session.deleted``."""
    return next(reversed(session._deleted), None)


def deleted_since(session: Session, last: State | None) -> Iterator[State]:
    """Those that were added to it after ``last``; all of them, if a flush has taken that away."""
    return takewhile(lambda state: state is not last, reversed(session._deleted))


def mark_deleted(session: Session, state: State, obj: Any) -> None:
    """Put the object back into ``session.deleted``; what it cascades to stays as it is."""
    session._deleted[state] = obj


def unmark_deleted(session: Session, state: State) -> None:
    """Take the object out of ``session.deleted``, and leave the running flush as it is."""
    session._deleted.pop(state, None)


def now_deleted(session: Session, states: Iterable[State]) -> None:
    """A statement has deleted the rows of these objects, as ``delete(Model)`` does."""
    session._remove_newly_deleted(list(states))


def stored_to_flush(session: Session) -> list[State]:
    """Its changed and deleted objects, of which each list is made anew."""
    return [*session.identity_map._modified, *session._deleted]


def classes_to_flush(session: Session) -> set[Mapper[Any]]:
    """The classes of its new, changed and deleted objects, of which each list is made anew."""
    states = (session._new, session.identity_map._modified, session._deleted)
    return set(map(_mapper_of, chain.from_iterable(states)))


_mapper_of: Callable[[State], Mapper[Any]] = attrgetter("manager.mapper")


def is_flushing(session: Session) -> bool:
    """Does a flush run?"""
    return bool(session._flushing)


def expire_with_savepoint(session: Session, states: Iterable[State]) -> None:
    """Let the rollback of the running savepoint expire these objects, too."""
    session._register_altered(states)


def listeners_of(session: Session, name: str) -> Iterable[Callable[..., Any]]:
    """What is called for an event of the session, whoever registered it."""
    listeners: Iterable[Callable[..., Any]] = getattr(session.dispatch, name)
    return listeners


def called_last(session: Session, name: str) -> Callable[..., Any] | None:
    """The listener of the session's event that SQLAlchemy calls after all others."""
    last = deque(listeners_of(session, name), maxlen=1)
    return last[0] if last else None
