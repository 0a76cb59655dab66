"""The version that the author of an edit saw, when the object has been expired since.

::

    page = session.get(Page, 7)        # version 3
    session.commit()                   # expires it; somebody else writes version 4
    page.title = "New"                 # set without reading the row again
    session.commit()                   # ConcurrencyError: the author saw version 3

SQLAlchemy reads an expired version inside the flush, finds 4, and overwrites what nobody has
seen. So a watched session remembers the version of what a commit, a rollback, ``expire`` or
``expire_all`` expires. Whoever reads the object again before editing it sees the new values, and
the memory goes. With edits that are older than the reading, or with a ``session.delete()``, the
object keeps the version that was seen. So it does when ``expire(obj, [...])`` or
``refresh(obj, [...])`` names the version and leaves older values beside it. ``refresh(obj)`` drops
the edits and starts anew.

What a rollback expires: :mod:`optilock.watched.rows.rolled_back`. Objects whose version nobody
knows: :mod:`optilock.watched.rows.unknown_versions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from sqlalchemy import event, inspect
from sqlalchemy.orm import NO_VALUE, InstanceState, Mapper, QueryContext, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError, UnmappedColumnError

from optilock.mapped import State, facts
from optilock.mapping.compared import (
    any_compared,
    remember_values,
    remembered_values,
    values_seen,
)
from optilock.undocumented.flushes import deleted_since, is_flushing, marked_deleted
from optilock.undocumented.mappers import left_out, read_expired
from optilock.watched.rows.locked import expire_older
from optilock.watched.session.watched import is_watched

#: An attribute of a state: the version that the author of an expired object has seen.
SEEN = "_optilock_seen"
_YOUNGER = "_optilock_younger"
_DECIDED = "_optilock_decided"
#: Attributes that an object which is to be deleted was given, until its row is read for that.
_LEFT = "_optilock_left"
#: In the place of a version: the object came from outside, and nobody knows what its author saw.
NEVER = object()
#: Classes whose rows are looked at when they are read again.
_watching: WeakSet[Mapper[Any]] = WeakSet()


class _Apart(NamedTuple):
    """A version that was expired while values that belong to it are still held."""

    version: Any


# -- what is expired ------------------------------------------------------------------------------


def remember_version(state: State, version: Any) -> None:
    """The author of the object, which is expired, has seen its row in that version."""
    state.__dict__[SEEN] = version


def remember(states: Iterable[State]) -> None:
    """What these objects hold will be expired as a whole."""
    manager, token, compared = None, "", False
    for state in states:
        if state.manager is not manager:
            manager = state.manager
            known = facts(manager.mapper)
            token, compared = known.token, any_compared() and known.compares
        if compared:
            remember_values(state)
        if token and (obj := state.obj()) is not None:
            version = obj.__dict__.get(token)  # a commit asks every object: no detours
            if state.committed_state:  # assigned or touched, and not written
                version = state.committed_state.get(token, version)
            if version is not None:
                setattr(state, SEEN, version)  # not through __dict__, which would make it one


class Memory(NamedTuple):
    """What the author of an expired object had seen of it."""

    state: State
    version: Any
    values: dict[str, Any] | None


def memories(states: Iterable[State]) -> list[Memory]:
    """Those of the objects that are expired and not edited, before somebody else reads them."""
    return [
        Memory(state, state.__dict__.get(SEEN), remembered_values(state))
        for state in states
        if facts(state.mapper).token not in state.dict
        if not state.modified
    ]


def remember_again(memory: Memory) -> None:
    """The object was read, but not by its author, and is expired again."""
    state, version, values = memory
    if version is not None:
        state.__dict__[SEEN] = version
    if values is not None:
        values_seen(state, values)


def remember_expired(obj: Any, names: Collection[str] | None) -> None:
    """``obj`` will be expired, or the attributes ``names`` of it; with all, what it cascades to."""
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        return  # SQLAlchemy says so
    if names:
        token = facts(state.mapper).token
        if facts(state.mapper).compares:
            remember_values(state)
        if token in names and token in state.dict:
            version = state.committed_state.get(token, state.dict[token])
            state.__dict__[SEEN] = _Apart(version)
        return
    related = (s for _, _, s, _ in state.mapper.cascade_iterator("refresh-expire", state))
    remember((state, *related))


def recall(state: State) -> None:
    """Hold the version that the author of a delete, or a touch, saw, instead of reading the row.

    And the key: it is all that SQLAlchemy needs beside the version.
    """
    mapper = state.mapper
    watch_loads(mapper)
    token = facts(mapper).token
    if not token or token in state.dict or state.key is None:
        return
    seen = version_seen(state, token)
    if seen is None:
        return
    state.__dict__.pop(SEEN)  # held from here on: what a flush reads after its write is newer
    keys = zip(facts(mapper).keys, state.key[1], strict=True)
    for name, value in ((token, seen), *((n, v) for n, v in keys if n not in state.dict)):
        state.dict[name] = value
        state.expired_attributes.discard(name)
    state.__dict__.pop(SEEN, None)  # or it would stand for the version that a write reads back


# -- what is to be deleted ------------------------------------------------------------------------


def recall_deleted(state: State) -> None:
    """:func:`recall`, of an object that is to be deleted."""
    known = facts(state.mapper)
    expired = [name for name in (known.token, *known.keys) if name not in state.dict]
    recall(state)
    if known.token in expired and known.token in state.dict:
        state.__dict__[_LEFT] = expired


def read_deleted(session: Session) -> None:
    """Read what is expired of the objects that the flush deletes, for the last time.

    SQLAlchemy reads it for the version: afterwards there is no row to read it from.
    """
    for obj in session.deleted:
        recall_deleted(instance_state(obj))
        _read_rest(instance_state(obj))


def _read_rest(state: State) -> None:
    names = state.__dict__.pop(_LEFT, None)
    if not names or not state.expired_attributes:
        return
    held = {
        n: state.dict.pop(n) for n in names if n in state.dict and n not in state.committed_state
    }
    state.expired_attributes.update(held)
    try:
        with suppress(ObjectDeletedError):  # the DELETE tells
            read_expired(state)
    finally:
        state.dict.update(held)
        state.expired_attributes.difference_update(held)


class _Decided(NamedTuple):
    """The object is to be deleted."""

    #: In the version, and with the values, that it held then, also if a query fills it with a
    #: later row.
    version: Any
    #: Because it was removed from where orphans are deleted: does that still stand?
    stands: Callable[[], bool] | None = None


def remember_deleted(session: Session, last: State | None) -> None:
    """The objects that were added to ``session.deleted`` after ``last`` are to be deleted."""
    for state in deleted_since(session, last):
        _decide(state, None)


def remember_removed(states: Iterable[State], stands: Callable[[], bool]) -> None:
    """These are to be deleted as orphans, or with one, as long as the removal ``stands``."""
    for state in states:
        _decide(state, stands)


def _decide(state: State, stands: Callable[[], bool] | None) -> None:
    token = facts(state.mapper).token
    if token:
        state.__dict__[_DECIDED] = _Decided(version_seen(state, token), stands)
    if any_compared() and facts(state.mapper).compares:
        remember_values(state)


def _is_doomed(state: State, session: Session) -> bool:
    """Was it decided to delete the object?"""
    if state in marked_deleted(session):
        return True
    decided = state.__dict__.get(_DECIDED)
    return (
        decided is not None
        and decided.stands is not None
        and is_watched(session)
        and decided.stands()
    )


# -- what counts as seen --------------------------------------------------------------------------


def version_seen(state: State, token: str) -> Any:
    """The version that the object's author saw, without reading anything; ``None`` if none."""
    if token in state.dict:
        loaded = state.committed_state.get(token, NO_VALUE)
        return state.dict[token] if loaded is NO_VALUE else loaded  # assigned to a new object
    return _plain(state.__dict__.get(SEEN))


def _plain(seen: Any) -> Any:
    if seen is NEVER:
        return None
    return seen.version if isinstance(seen, _Apart) else seen


def younger_names(state: State, version: Any) -> Collection[str]:
    """The attributes that a flush has loaded from the row after it had left ``version``.

    The author of the edit has not seen their values.
    """
    seen, names = state.__dict__.get(_YOUNGER, (None, ()))
    return names if seen == version else ()


def forget(obj: Any) -> None:
    """The version of ``obj`` was moved by this session itself: the one that is read next counts."""
    state: State = obj if isinstance(obj, InstanceState) else instance_state(obj)
    state.__dict__.pop(SEEN, None)


def moved_by_us(state: State, token: str, before: Any, after: Any) -> None:
    """A statement of this session moved the row's version: ``after`` counts as seen.

    An object that does not hold, or remember, ``before`` is older than the row and stays as it is.
    """
    if version_seen(state, token) != before or token in state.committed_state:
        return
    decided = state.__dict__.get(_DECIDED)
    if decided is not None and decided.version == before:
        state.__dict__[_DECIDED] = _Decided(after, decided.stands)
    if token in state.dict:
        state.dict[token] = after
    else:
        seen = state.__dict__[SEEN]
        state.__dict__[SEEN] = _Apart(after) if isinstance(seen, _Apart) else after


def moved_back(state: State, token: str, before: Any, after: Any) -> Callable[[], None]:
    """What takes :func:`moved_by_us` back, when the statement is undone."""
    return functools.partial(moved_by_us, state, token, after, before)


# -- what is read again ---------------------------------------------------------------------------


def watch_loads(mapper: Mapper[Any]) -> None:
    """From here on, look at what is read again for objects of the class that hold their rows."""
    if mapper not in _watching:
        with suppress(UnmappedColumnError):  # of another table: the first flush says so
            token = facts(mapper).token
            _watching.add(mapper)
            if token:
                _watch_loads(mapper, token)


def _watch_loads(mapper: Mapper[Any], token: str) -> None:
    """From here on, look at what is read again. Rows that are new to a session are not watched."""

    def refresh(state: State, context: Any, attrs: Collection[str] | None) -> None:
        if not isinstance(context, QueryContext):
            context = None  # a composite is made of what is held
        elif context.refresh_state is None:
            state.__dict__.pop(_LEFT, None)  # the row was read
            _without_older(state, context, attrs)
        if attrs is not None and token not in attrs:
            return
        seen = state.__dict__.pop(SEEN, None)
        if context is not None:
            if attrs is None:
                for name in left_out(state, context):
                    del state.dict[name]  # deferred, as in an object that is new to the session
            doomed = _is_doomed(state, context.session)
            decided = state.__dict__.get(_DECIDED)
            if doomed and decided is not None and decided.version is not None:
                seen = decided.version
        if seen is None or context is None:
            return
        # Most rows that are read again hold nothing.
        if not (doomed or state.committed_state or type(seen) is _Apart):
            return
        if doomed or _is_older(state, seen, context, attrs):
            unseen = doomed or is_flushing(context.session)
            if unseen and state.dict.get(token) != _plain(seen):
                names = state.dict.keys() if attrs is None else attrs
                state.__dict__[_YOUNGER] = _plain(seen), frozenset(names) - {token}
            state.dict[token] = _plain(seen)
            if seen is NEVER:
                state.__dict__[SEEN] = seen

    event.listen(mapper.class_, "refresh", refresh, raw=True)
    impl: Any = mapper.class_manager[token].impl
    if not isinstance(impl, _Told):
        impl.__class__ = _told(type(impl))  # type: ignore[arg-type]


def _without_older(state: State, context: Any, attrs: Collection[str] | None) -> None:
    """What a plain query reads of a locked row may be older, by ``populate_existing`` all of it."""
    if attrs is not None:
        expire_older(state, context, attrs)
    elif state not in marked_deleted(context.session):
        keys = facts(state.mapper).keys
        expire_older(state, context, [name for name in list(state.dict) if name not in keys])


class _Told:
    """A version attribute that learns from ``set_committed_value()`` which version was seen."""

    __slots__ = ()

    def set(self, state: State, dict_: Any, value: Any, *args: Any, **options: Any) -> None:
        """Assigned by the application: what was seen before counts, and is not read for it."""
        if self.key not in dict_:  # type: ignore[attr-defined]
            seen = version_seen(state, self.key)  # type: ignore[attr-defined]
            if seen is not None:
                dict_[self.key] = seen  # type: ignore[attr-defined]
                state.expired_attributes.discard(self.key)  # type: ignore[attr-defined]
                state.__dict__.pop(SEEN, None)
        super().set(state, dict_, value, *args, **options)  # type: ignore[misc]

    def set_committed_value(self, state: State, dict_: Any, value: Any) -> Any:
        state.__dict__.pop(SEEN, None)
        return super().set_committed_value(state, dict_, value)  # type: ignore[misc]


@functools.cache
def _told(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Told, kind), {"__slots__": ()})


def _is_older(state: State, seen: Any, context: Any, attrs: Collection[str] | None) -> bool:
    """Does the object hold something that its author did before this row was read?"""
    if context.refresh_state is None and context.populate_existing:
        return False  # a query that drops all edits
    columns = state.mapper.column_attrs
    if any(name in columns for name in state.committed_state):
        return True
    return (
        isinstance(seen, _Apart)
        and attrs is not None
        and any(name in columns and name not in attrs for name in state.dict)
    )
