"""``Session.get()`` and ``refresh()`` of a watched session.

SQLAlchemy builds a query for each ``get()`` of a row that the session does not hold, and computes
its cache key: a tenth of the processor time of a unit that reads one row, changes it and commits.
Here the query belongs to the class, and is the same in SQL. In all other cases SQLAlchemy reads:
with options, a key in another form, an object that the session holds, a class mapped to a SELECT.

In ``session.get(..., with_for_update=True)`` SQLAlchemy compares the versions, and raises a plain
``StaleDataError`` for an object that is older than its row: a lock does not show its holder what
others wrote before. A watched session raises it with an entry. ``refresh(obj, ["one"],
with_for_update=True)`` also reads the version, or SQLAlchemy would fail. An object whose other
attributes are older keeps the version that they belong to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Select, inspect
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.exc import StaleDataError

from optilock.errors import ConcurrencyError, OptilockError, preceded_by
from optilock.mapped import Facts, Identity, State, facts, identity_of
from optilock.undocumented.statements import repeats
from optilock.watched.rows.entries import attempt_of, entry_of
from optilock.watched.rows.locked import run_locking
from optilock.watched.rows.seen import version_seen
from optilock.watched.rows.stored import read_stored
from optilock.watched.rows.touch import TOUCHED, is_touched, touch_again
from optilock.watched.session.connections import PLAIN, connection_to_write
from optilock.watched.session.watched import READS, Reads

__all__ = ["asked_for", "read_by_key", "reads_plainly", "sent", "the_one"]

#: What a key, or its only part, is often made of.
_PLAIN = frozenset({tuple, int, str, bytes, UUID})


def read_by_key(
    original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
) -> Any:
    """``session.get()`` of a row that is not locked."""
    found = asked_for(entity, ident)
    if found is None or not reads_plainly(original, found[0], options):
        return original(session, entity, ident, **options)
    known, identity = found
    if known.mapper.identity_key_from_primary_key(identity) in session.identity_map:
        return original(session, entity, ident, **options)
    return the_one(sent(session, known, identity, known.select_one))


def asked_for(entity: Any, ident: Any) -> tuple[Facts, Identity] | None:
    """What is known of the class, and the key, where both are given in the usual form."""
    mapper = getattr(entity, "__mapper__", None)
    if mapper is None or mapper.class_ is not entity or type(ident) not in _PLAIN:
        return None
    identity = ident if type(ident) is tuple else (ident,)
    if len(identity) != len(mapper.primary_key) or None in identity:
        return None
    return facts(mapper), identity


def reads_plainly(original: Callable[..., Any], known: Facts, options: Any) -> bool:
    """Does the class's own query find what ``get()`` would find?"""
    return original is Session.get and known.is_read_simply and not any(options.values())


def sent(session: Session, known: Facts, identity: Identity, query: Select[Any]) -> Any:
    """The result of one of the class's own queries; no object is made of it yet.

    What the guard asks of every other query is known of these.
    """
    params = dict(zip(known.key_parameters, identity, strict=True))
    execute = session.execute
    if getattr(execute, PLAIN, None) is not Session.execute:  # the application's own
        return execute(query, params)
    if query is known.select_one:
        return Session.execute(session, query, params)
    return run_locking(session, Session.execute, query, params, {})


def the_one(result: Any) -> Any:
    """The object, or None."""
    return (result.unique() if repeats(result) else result).scalar_one_or_none()


# -- reads that lock -------------------------------------------------------------------------------

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
