"""The version that the author of an edit saw, when the object has been expired since.

::

    page = session.get(Page, 7)        # version 3
    session.commit()                   # expires it; another session writes version 4
    page.title = "New"                 # set without reading the row again
    session.commit()                   # ConcurrencyError: the author saw version 3

SQLAlchemy reads an expired version inside the flush, finds 4, and overwrites a change that the
author has not seen. So a watched session remembers the version of objects that a commit, a
rollback, ``expire`` or ``expire_all`` expires. A read before the edit shows the new values, and the
memory is dropped. With edits that are older than the read, or with a ``session.delete()``, the
object keeps the version that was seen. So it does when ``expire(obj, [...])`` or
``refresh(obj, [...])`` names the version and leaves older values. ``refresh(obj)`` drops the edits
and the memory.

After a rollback: :mod:`optilock.watched.rows.rolled_back`. Objects of unknown versions:
:mod:`optilock.watched.rows.unknown_versions`.
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
from optilock.mapping.original_values import (
    any_compared,
    remember_values,
    remembered_values,
    values_seen,
)
from optilock.undocumented.flushes import is_flushing, states_deleted_since, states_marked_deleted
from optilock.undocumented.mappers import names_left_out, read_expired
from optilock.watched.rows.locked import expire_older
from optilock.watched.session.record import is_watched

#: An attribute of a state: the version that the author of an expired object has seen.
SEEN_VERSION = "_optilock_seen"
_YOUNGER = "_optilock_younger"
_DECIDED = "_optilock_decided"
#: Attributes that an object which is to be deleted was given, until its row is read for that.
_LEFT = "_optilock_left"
#: Instead of a version: the object came from outside, and its author's version is unknown.
NEVER_READ = object()
#: Classes whose rows are looked at when they are read again.
_watching: WeakSet[Mapper[Any]] = WeakSet()


class _PartlyExpired(NamedTuple):
    """A version that was expired while values that belong to it are still held."""

    version: Any


# -- expired objects -------------------------------------------------------------------------------


def remember_version(state: State, version: Any) -> None:
    """Remember the version in which the author of an expired object has seen its row."""
    state.__dict__[SEEN_VERSION] = version


def remember_versions(states: Iterable[State]) -> None:
    """Remember the versions of objects that will be expired as a whole."""
    manager, token, compared = None, "", False
    for state in states:
        if state.manager is not manager:
            manager = state.manager
            class_facts = facts(manager.mapper)
            token, compared = class_facts.token, any_compared() and class_facts.compares
        if compared:
            remember_values(state)
        if token and (obj := state.obj()) is not None:
            version = obj.__dict__.get(token)  # a commit asks every object: no detours
            if state.committed_state:  # assigned or touched, and not written
                version = state.committed_state.get(token, version)
            if version is not None:
                setattr(
                    state, SEEN_VERSION, version
                )  # not through __dict__, which would make it one


class Memory(NamedTuple):
    """The version and values that the author of an expired object had seen."""

    state: State
    version: Any
    values: dict[str, Any] | None


def memories(states: Iterable[State]) -> list[Memory]:
    """Return the memories of objects that are expired and not edited, before they are read."""
    return [
        Memory(state, state.__dict__.get(SEEN_VERSION), remembered_values(state))
        for state in states
        if facts(state.mapper).token not in state.dict
        if not state.modified
    ]


def restore_memory(memory: Memory) -> None:
    """Expire an object again that was read, but not by its author."""
    state, version, values = memory
    if version is not None:
        state.__dict__[SEEN_VERSION] = version
    if values is not None:
        values_seen(state, values)


def remember_expired(obj: Any, names: Collection[str] | None) -> None:
    """Remember ``obj``, or its attributes ``names``, before it is expired.

    Without names, cascaded objects are remembered, too.
    """
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        return  # SQLAlchemy raises
    if names:
        token = facts(state.mapper).token
        if facts(state.mapper).compares:
            remember_values(state)
        if token in names and token in state.dict:
            version = state.committed_state.get(token, state.dict[token])
            state.__dict__[SEEN_VERSION] = _PartlyExpired(version)
        return
    related = (s for _, _, s, _ in state.mapper.cascade_iterator("refresh-expire", state))
    remember_versions((state, *related))


def recall_version(state: State) -> None:
    """Hold the version that the author of a delete, or a touch, saw, instead of reading the row.

    The key is held as well: SQLAlchemy needs no more than both.
    """
    mapper = state.mapper
    watch_loads(mapper)
    token = facts(mapper).token
    if not token or token in state.dict or state.key is None:
        return
    seen = version_seen(state, token)
    if seen is None:
        return
    state.__dict__.pop(
        SEEN_VERSION
    )  # held from here on: values that a flush reads after its write are newer
    keys = zip(facts(mapper).keys, state.key[1], strict=True)
    for name, value in ((token, seen), *((n, v) for n, v in keys if n not in state.dict)):
        state.dict[name] = value
        state.expired_attributes.discard(name)
    state.__dict__.pop(
        SEEN_VERSION, None
    )  # or it would stand for the version that a write reads back


# -- objects to be deleted -------------------------------------------------------------------------


def recall_for_delete(state: State) -> None:
    """Hold the version, as :func:`recall_version`, of an object that is to be deleted."""
    class_facts = facts(state.mapper)
    expired = [name for name in (class_facts.token, *class_facts.keys) if name not in state.dict]
    recall_version(state)
    if class_facts.token in expired and class_facts.token in state.dict:
        state.__dict__[_LEFT] = expired


def read_before_delete(session: Session) -> None:
    """Read the expired attributes of objects that the flush deletes, for the last time.

    SQLAlchemy reads them for the version. Afterwards there is no row to read.
    """
    for obj in session.deleted:
        recall_for_delete(instance_state(obj))
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
        with suppress(ObjectDeletedError):  # the DELETE reports it
            read_expired(state)
    finally:
        state.dict.update(held)
        state.expired_attributes.difference_update(held)


class _Decided(NamedTuple):
    """The object is to be deleted."""

    #: In the version, and with the values, that it held then, also if a query fills it with a
    #: later row.
    version: Any
    #: Of an orphan: whether it is still removed from the collection that deletes orphans.
    stands: Callable[[], bool] | None = None


def remember_deleted(session: Session, last: State | None) -> None:
    """Remember objects added to ``session.deleted`` after ``last`` as to be deleted."""
    for state in states_deleted_since(session, last):
        _decide(state, None)


def remember_removed(states: Iterable[State], stands: Callable[[], bool]) -> None:
    """Remember orphans, and objects deleted with one, as long as the removal ``stands``."""
    for state in states:
        _decide(state, stands)


def _decide(state: State, stands: Callable[[], bool] | None) -> None:
    token = facts(state.mapper).token
    if token:
        state.__dict__[_DECIDED] = _Decided(version_seen(state, token), stands)
    if any_compared() and facts(state.mapper).compares:
        remember_values(state)


def _is_doomed(state: State, session: Session) -> bool:
    """Return whether the object is to be deleted."""
    if state in states_marked_deleted(session):
        return True
    decided = state.__dict__.get(_DECIDED)
    return (
        decided is not None
        and decided.stands is not None
        and is_watched(session)
        and decided.stands()
    )


# -- the version seen ------------------------------------------------------------------------------


def version_seen(state: State, token: str) -> Any:
    """Return the version that the object's author saw, without a read; ``None`` if none."""
    if token in state.dict:
        loaded = state.committed_state.get(token, NO_VALUE)
        return state.dict[token] if loaded is NO_VALUE else loaded  # assigned to a new object
    return _version_of(state.__dict__.get(SEEN_VERSION))


def _version_of(seen: Any) -> Any:
    if seen is NEVER_READ:
        return None
    return seen.version if isinstance(seen, _PartlyExpired) else seen


def younger_names(state: State, version: Any) -> Collection[str]:
    """Return attributes that a flush has loaded from the row after it had left ``version``.

    The author of the edit has not seen their values.
    """
    seen, names = state.__dict__.get(_YOUNGER, (None, ()))
    return names if seen == version else ()


def forget_version(obj: Any) -> None:
    """Forget the version of ``obj``, which this session has moved: the next read counts."""
    state: State = obj if isinstance(obj, InstanceState) else instance_state(obj)
    state.__dict__.pop(SEEN_VERSION, None)


def follow_move(state: State, token: str, before: Any, after: Any) -> None:
    """Count ``after`` as seen: a statement of this session moved the row's version.

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
        seen = state.__dict__[SEEN_VERSION]
        state.__dict__[SEEN_VERSION] = (
            _PartlyExpired(after) if isinstance(seen, _PartlyExpired) else after
        )


def undo_of_move(state: State, token: str, before: Any, after: Any) -> Callable[[], None]:
    """Return a function that takes :func:`follow_move` back, when the statement is undone."""
    return functools.partial(follow_move, state, token, after, before)


# -- repeated reads --------------------------------------------------------------------------------


def watch_loads(mapper: Mapper[Any]) -> None:
    """Watch repeated reads of the class's rows, for objects that hold them."""
    if mapper not in _watching:
        with suppress(UnmappedColumnError):  # of another table: the first flush raises
            token = facts(mapper).token
            _watching.add(mapper)
            if token:
                _watch_loads(mapper, token)


def _watch_loads(mapper: Mapper[Any], token: str) -> None:
    """Listen to the class's rows that are read again. Rows new to a session are not watched."""

    def refresh(state: State, context: Any, attrs: Collection[str] | None) -> None:
        # a composite is made of attributes that are held, without a query
        query = context if isinstance(context, QueryContext) else None
        if query is not None and query.refresh_state is None:
            state.__dict__.pop(_LEFT, None)  # the row was read
            _without_older(state, query, attrs)
        if attrs is not None and token not in attrs:
            return
        seen = state.__dict__.pop(SEEN_VERSION, None)
        if query is not None:
            _settle_seen(state, token, seen, query, attrs)

    event.listen(mapper.class_, "refresh", refresh, raw=True)
    impl: Any = mapper.class_manager[token].impl
    if not isinstance(impl, _VersionAttribute):
        impl.__class__ = _version_attribute(type(impl))  # type: ignore[arg-type]


def _settle_seen(
    state: State, token: str, seen: Any, query: QueryContext, attrs: Collection[str] | None
) -> None:
    """Hold the version that was read, or keep the one that the author of older edits has seen."""
    if attrs is None:
        for name in names_left_out(state, query):
            del state.dict[name]  # deferred, as in an object that is new to the session
    doomed = _is_doomed(state, query.session)
    if doomed:
        seen = _version_decided(state, seen)
    # Most rows that are read again hold nothing.
    if seen is None or not (doomed or state.committed_state or type(seen) is _PartlyExpired):
        return
    if doomed or _is_older(state, seen, query, attrs):
        _keep_seen(state, token, seen, attrs, unseen=doomed or is_flushing(query.session))


def _version_decided(state: State, seen: Any) -> Any:
    """Return the version that the object had when its delete was decided, or else ``seen``."""
    decided = state.__dict__.get(_DECIDED)
    return seen if decided is None or decided.version is None else decided.version


def _keep_seen(
    state: State, token: str, seen: Any, attrs: Collection[str] | None, *, unseen: bool
) -> None:
    """Keep the version that was seen, and note attributes with ``unseen`` younger values."""
    if unseen and state.dict.get(token) != _version_of(seen):
        names = state.dict.keys() if attrs is None else attrs
        state.__dict__[_YOUNGER] = _version_of(seen), frozenset(names) - {token}
    state.dict[token] = _version_of(seen)
    if seen is NEVER_READ:
        state.__dict__[SEEN_VERSION] = seen


def _without_older(state: State, context: Any, attrs: Collection[str] | None) -> None:
    """Expire attributes that a plain query read of a locked row: they may be older."""
    if attrs is not None:
        expire_older(state, context, attrs)
    elif state not in states_marked_deleted(context.session):
        keys = facts(state.mapper).keys
        expire_older(state, context, [name for name in list(state.dict) if name not in keys])


class _VersionAttribute:
    """A version attribute for which ``set_committed_value()`` sets the version that was seen."""

    __slots__ = ()

    def set(self, state: State, dict_: Any, value: Any, *args: Any, **options: Any) -> None:
        """Set the application's value; the version that was seen before counts, without a read."""
        if self.key not in dict_:  # type: ignore[attr-defined]
            seen = version_seen(state, self.key)  # type: ignore[attr-defined]
            if seen is not None:
                dict_[self.key] = seen  # type: ignore[attr-defined]
                state.expired_attributes.discard(self.key)  # type: ignore[attr-defined]
                state.__dict__.pop(SEEN_VERSION, None)
        super().set(state, dict_, value, *args, **options)  # type: ignore[misc]

    def set_committed_value(self, state: State, dict_: Any, value: Any) -> Any:
        state.__dict__.pop(SEEN_VERSION, None)
        return super().set_committed_value(state, dict_, value)  # type: ignore[misc]


@functools.cache
def _version_attribute(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_VersionAttribute, kind), {"__slots__": ()})


def _is_older(state: State, seen: Any, context: Any, attrs: Collection[str] | None) -> bool:
    """Return whether the object holds a change that its author made before this row was read."""
    if context.refresh_state is None and context.populate_existing:
        return False  # a query that drops all edits
    columns = state.mapper.column_attrs
    if any(name in columns for name in state.committed_state):
        return True
    return (
        isinstance(seen, _PartlyExpired)
        and attrs is not None
        and any(name in columns and name not in attrs for name in state.dict)
    )
