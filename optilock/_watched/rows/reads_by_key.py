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

from optilock._mapped import Facts, Identity, State, facts, identity_of
from optilock._undocumented.statements import may_repeat_objects
from optilock._watched.rows.entries import HiddenRows, attempt_of, entry_of
from optilock._watched.rows.locked import run_locking
from optilock._watched.rows.seen import version_seen
from optilock._watched.rows.stored import read_stored
from optilock._watched.rows.touch import TOUCHES, is_touched, touch_again
from optilock._watched.session.connections import ORIGINAL_KEY, connection_to_write
from optilock._watched.session.record import READS_KEY, Reads
from optilock.errors import ConcurrencyError, OptilockError, prepend_line
from optilock.events import report

#: What a key, or its only part, is often made of.
_PLAIN = frozenset({tuple, int, str, bytes, UUID})


def read_by_key(
    original: Callable[..., Any], session: Session, entity: Any, ident: Any, options: Any
) -> Any:
    """Return ``session.get()`` of a row that is not locked."""
    found = match_simple_key(entity, ident)
    if found is None or not uses_own_query(original, found[0], options):
        return original(session, entity, ident, **options)
    class_facts, identity = found
    if class_facts.mapper.identity_key_from_primary_key(identity) in session.identity_map:
        return original(session, entity, ident, **options)
    return one_or_none(send_query_by_key(session, class_facts, identity, class_facts.select_one))


def match_simple_key(entity: Any, ident: Any) -> tuple[Facts, Identity] | None:
    """Return the facts of the class and the key, where both are given in the usual form."""
    mapper = getattr(entity, "__mapper__", None)
    if mapper is None or mapper.class_ is not entity or type(ident) not in _PLAIN:
        return None
    identity = ident if type(ident) is tuple else (ident,)
    if len(identity) != len(mapper.primary_key) or None in identity:
        return None
    return facts(mapper), identity


def uses_own_query(original: Callable[..., Any], class_facts: Facts, options: Any) -> bool:
    """Return whether the class's own query finds the row that ``get()`` would find."""
    return (
        original is Session.get and class_facts.locked_in is not None and not any(options.values())
    )


def send_query_by_key(
    session: Session, class_facts: Facts, identity: Identity, query: Select[Any]
) -> Any:
    """Send one of the class's own queries, and return its result; no object is made of it yet.

    The checks of other queries are not needed for these.
    """
    params = dict(zip(class_facts.key_parameters, identity, strict=True))
    execute = session.execute
    if getattr(execute, ORIGINAL_KEY, None) is not Session.execute:  # the application's own
        return execute(query, params)
    if query is class_facts.select_one:
        return Session.execute(session, query, params)
    return run_locking(session, Session.execute, query, params, {})


def one_or_none(result: Any) -> Any:
    """Return the object, or ``None``."""
    return (result.unique() if may_repeat_objects(result) else result).scalar_one_or_none()


# -- reads that lock -------------------------------------------------------------------------------

Read = Callable[..., Any]


def guarded_get(original: Read) -> Read:
    """Replace ``Session.get``, or ``get_one``."""

    @functools.wraps(original)
    def get(self: Session, entity: Any, ident: Any, **options: Any) -> Any:
        if not options.get("with_for_update"):
            reads: Reads | None = self.__dict__.get(READS_KEY)
            read = read_by_key if reads is None else reads.get
            return read(original, self, entity, ident, options)
        held_state = functools.partial(_object_held, self, entity, ident)
        touched = held_state() if TOUCHES in self.__dict__ else None
        with _raise_with_entry(self, held_state), _compare_as_read(self, touched):
            return original(self, entity, ident, **options)

    return get


@contextmanager
def _compare_as_read(session: Session, state: State | None) -> Iterator[None]:
    """Let a touched object hold the version that was read, while the locked row is compared."""
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
    """Replace ``Session.refresh``."""

    @functools.wraps(original)
    def refresh(self: Session, instance: Any, attribute_names: Any = None, **options: Any) -> None:
        state = inspect(instance, raiseerr=False)
        if not options.get("with_for_update") or not isinstance(state, InstanceState):
            original(self, instance, attribute_names, **options)
            return
        token = facts(state.mapper).token
        if attribute_names is not None and token:
            attribute_names = list(dict.fromkeys((*attribute_names, token)))
        with _raise_with_entry(self, lambda: state):
            original(self, instance, attribute_names, **options)

    return refresh


def _object_held(session: Session, entity: Any, ident: Any) -> State | None:
    mapper = inspect(entity)
    assert isinstance(mapper, Mapper)
    if isinstance(ident, dict):
        ident = tuple(ident[name] for name in facts(mapper).keys)
    identity = ident if isinstance(ident, tuple) else (ident,)
    obj = session.identity_map.get(mapper.identity_key_from_primary_key(identity))
    return None if obj is None else inspect(obj)


@contextmanager
def _raise_with_entry(session: Session, held_state: Callable[[], State | None]) -> Iterator[None]:
    """Turn SQLAlchemy's error about an object that is older than its row into one with an entry."""
    try:
        yield
    except StaleDataError as error:
        state = held_state()
        if isinstance(error, OptilockError) or state is None or state.key is None:
            raise
        if not session.is_active:  # the error of a flush before the query, which has ended it
            raise
        mapper, identity = state.mapper, identity_of(state)
        token = facts(mapper).token
        connection = connection_to_write(session, mapper)
        attempt = attempt_of(state, "verify", version_seen(state, token))
        stored = read_stored(connection, mapper, [identity]).get(identity)
        entry = entry_of(attempt, stored, hidden=HiddenRows(connection))
        raise report(prepend_line(ConcurrencyError([entry]), error)) from error
