"""Reads that lock the row of an object which is older than it.

SQLAlchemy compares the versions in ``session.get(..., with_for_update=True)``, which is right: a
lock does not show its holder what others have written before. It says so with a plain
``StaleDataError``; a watched session says it with an entry. ``refresh(obj, ["one"],
with_for_update=True)`` has to read the version as well, or SQLAlchemy fails; an object whose other
attributes are older keeps the version that they belong to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.exc import StaleDataError

from optilock.copies.reads_by_key import read_by_key
from optilock.errors import ConcurrencyError, OptilockError, preceded_by
from optilock.mapped import State, facts, identity_of
from optilock.rows.seen import version_seen
from optilock.rows.sides import attempt_of, entry_of
from optilock.rows.stored import read_stored
from optilock.rows.touch import TOUCHED, is_touched, touch_again
from optilock.session.connections import connection_to_write
from optilock.session.watched import READS, Reads

Read = Callable[..., Any]


def guarded_get(original: Read) -> Read:
    """``Session.get``, or ``get_one``."""

    @functools.wraps(original)
    def get(self: Session, entity: Any, ident: Any, **options: Any) -> Any:
        if not options.get("with_for_update"):
            reads: Reads | None = self.__dict__.get(READS)
            read = read_by_key if reads is None else reads.get
            return read(original, self, entity, ident, options)
        asked_for = functools.partial(_object_asked_for, self, entity, ident)
        touched = asked_for() if TOUCHED in self.__dict__ else None
        with _telling(self, asked_for), _as_read(self, touched):
            return original(self, entity, ident, **options)

    return get


@contextmanager
def _as_read(session: Session, state: State | None) -> Iterator[None]:
    """A touched object holds its next version; what the lock shows is compared with its own."""
    token = "" if state is None else facts(state.mapper).token
    if state is None or not is_touched(state) or state.committed_state.get(token) is None:
        yield
        return
    state.dict[token] = state.committed_state.pop(token)
    try:
        yield
    finally:
        touch_again(session)


def guarded_refresh(original: Read) -> Read:
    """``Session.refresh``."""

    @functools.wraps(original)
    def refresh(self: Session, instance: Any, attribute_names: Any = None, **options: Any) -> None:
        state = inspect(instance, raiseerr=False)
        if not options.get("with_for_update") or not isinstance(state, InstanceState):
            original(self, instance, attribute_names, **options)
            return
        token = facts(state.mapper).token
        if attribute_names is not None and token:
            attribute_names = list(dict.fromkeys((*attribute_names, token)))
        with _telling(self, lambda: state):
            original(self, instance, attribute_names, **options)

    return refresh


def _object_asked_for(session: Session, entity: Any, ident: Any) -> State | None:
    mapper = inspect(entity)
    assert isinstance(mapper, Mapper)
    if isinstance(ident, dict):
        ident = tuple(ident[name] for name in facts(mapper).keys)
    identity = ident if isinstance(ident, tuple) else (ident,)
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return None if obj is None else inspect(obj)


@contextmanager
def _telling(session: Session, asked_for: Callable[[], State | None]) -> Iterator[None]:
    """Turn SQLAlchemy's error about an object that is older than its row into one with an entry."""
    try:
        yield
    except StaleDataError as error:
        state = asked_for()
        if isinstance(error, OptilockError) or state is None or state.key is None:
            raise
        if not session.is_active:  # the error of a flush before the query, which has ended it
            raise
        mapper, identity = state.mapper, identity_of(state)
        token = facts(mapper).token
        connection = connection_to_write(session, mapper)
        attempt = attempt_of(state, "verify", version_seen(state, token))
        stored = read_stored(connection, mapper, [identity]).get(identity)
        conflict = ConcurrencyError([entry_of(attempt, stored)])
        raise preceded_by(conflict, error) from error
