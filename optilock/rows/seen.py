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

An object that comes to the session without a version, by ``make_transient_to_detached()`` or a
pickle, was read by nobody who could say in which: it must be read before it is edited.

After a rollback it is the version from before the transaction's own writes, and after that of a
savepoint the version from before the savepoint's. An object that was read after an UPDATE statement
which is rolled back may hold a version that never was; it must be read again before it is edited.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import event, inspect
from sqlalchemy.orm import Mapper, QueryContext, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.base import NO_VALUE
from sqlalchemy.orm.exc import UnmappedColumnError
from sqlalchemy.orm.state import InstanceState

from optilock.mapped.facts import facts
from optilock.mapped.keys import Place, place_of
from optilock.mapping.compared import (
    any_compared,
    remember_values,
    remembered_values,
    values_seen,
    values_unknown,
)
from optilock.rows.locked import expire_older
from optilock.session.records import Doubt
from optilock.session.watched import is_watched
from optilock.undocumented import (
    deleted_since,
    expire_with_savepoint,
    is_flushing,
    left_out,
    marked_deleted,
)

__all__ = [
    "BEFORE",
    "UNREAD",
    "Memory",
    "attached",
    "forget",
    "hold",
    "hold_nothing",
    "may_be_undone",
    "memories",
    "moved_back",
    "moved_by_us",
    "never_read",
    "recall",
    "remember",
    "remember_again",
    "remember_deleted",
    "remember_expired",
    "remember_removed",
    "remember_revived",
    "remember_rolled_back",
    "unread",
    "version_seen",
    "watch_loads",
    "younger_names",
]

State = InstanceState[Any]
_KEY = "_optilock_seen"
_YOUNGER = "_optilock_younger"
_DECIDED = "_optilock_decided"
#: An attribute of a session: its objects whose rows nobody has read, once there was one.
UNREAD = "_optilock_unread"
#: In the ``info`` of a copy that was made before a transaction had its outcome: the version that
#: was stored before the transaction wrote the row, or ``None``.
BEFORE = "optilock_before"
#: In the place of a version: the object came from outside, and nobody knows what its author saw.
_NEVER = object()
_NONE: Mapping[Any, Any] = {}
_tokens: WeakKeyDictionary[Mapper[Any], str | None] = WeakKeyDictionary()


class _Apart(NamedTuple):
    """A version that was expired while values that belong to it are still held."""

    version: Any


def attached(session: Session, obj: Any) -> None:
    """A detached object was added to ``session``."""
    state: State = instance_state(obj)
    token = _token_of(state.mapper)
    if token is None:
        return
    if may_be_undone(state):
        hold_nothing(state)
    if token not in state.dict and (_KEY not in state.__dict__ or never_read(state)):
        _unread(session, state)


def _unread(session: Session, state: State) -> None:
    """Nobody has read the row: looked for by each flush of the session until somebody has."""
    state.__dict__[_KEY] = _NEVER
    session.__dict__.setdefault(UNREAD, WeakSet()).add(state)


def unread(session: Session) -> Collection[State]:
    """Objects of the session whose rows nobody has read."""
    waiting = session.__dict__.get(UNREAD)
    if not waiting:
        return ()
    found = [state for state in waiting if _is_unread(state) and state.session is session]
    session.__dict__[UNREAD] = WeakSet(found)
    return found


def _is_unread(state: State) -> bool:
    """``merge(load=False)`` gives a version past all events; a touch gives the one that follows."""
    token = _token_of(state.mapper)
    return token is not None and never_read(state) and version_seen(state, token) is None


def never_read(state: State) -> bool:
    """Was the object edited without anybody having read its row?"""
    return state.__dict__.get(_KEY) is _NEVER


def hold(state: State, version: Any) -> None:
    """The row is in ``version``: what a transaction had made of it is undone."""
    token = _token_of(state.mapper)
    assert token is not None
    if token not in state.dict:
        state.__dict__[_KEY] = version
    elif token in state.committed_state:
        state.committed_state[token] = version
    else:
        state.dict[token] = version
    _decided(state)


def hold_nothing(state: State) -> None:
    """Nobody knows the version of what the object holds: its row must be read before an edit."""
    token = _token_of(state.mapper)
    if token is None:
        return
    state.dict.pop(token, None)
    state.committed_state.pop(token, None)
    state.__dict__[_KEY] = _NEVER
    _decided(state)
    if state.session is not None and state.key is not None:
        _unread(state.session, state)


def may_be_undone(state: State) -> bool:
    """Was the copy made of a row that a transaction had written, whose outcome it cannot know?"""
    return BEFORE in state.__dict__.get("info", ())


def _decided(state: State) -> None:
    if may_be_undone(state):
        del state.info[BEFORE]


def remember(states: Iterable[State]) -> None:
    """What these objects hold will be expired as a whole."""
    manager = token = None
    compared = False
    for state in states:
        if state.manager is not manager:
            manager = state.manager
            token = _token_of(manager.mapper)
            compared = any_compared() and facts(manager.mapper).compares
        if compared:
            remember_values(state)
        if token is not None and (obj := state.obj()) is not None:
            version = obj.__dict__.get(token)  # a commit asks every object: no detours
            if state.committed_state:  # assigned or touched, and not written
                version = state.committed_state.get(token, version)
            if version is not None:
                state.__dict__[_KEY] = version


class Memory(NamedTuple):
    """What the author of an expired object had seen of it."""

    state: State
    version: Any
    values: dict[str, Any] | None


def memories(states: Iterable[State]) -> list[Memory]:
    """Those of the objects that are expired and not edited, before somebody else reads them."""
    return [
        Memory(state, state.__dict__.get(_KEY), remembered_values(state))
        for state in states
        if (token := _token_of(state.mapper)) is None or token not in state.dict
        if not state.modified
    ]


def remember_again(memory: Memory) -> None:
    """The object was read, but not by its author, and is expired again."""
    state, version, values = memory
    if version is not None:
        state.__dict__[_KEY] = version
    if values is not None:
        values_seen(state, values)


def remember_expired(obj: Any, names: Collection[str] | None) -> None:
    """``obj`` will be expired, or the attributes ``names`` of it; with all, what it cascades to."""
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState):
        return  # SQLAlchemy says so
    if names:
        token = _token_of(state.mapper)
        if facts(state.mapper).compares:
            remember_values(state)
        if token in names and token in state.dict:
            version = state.committed_state.get(token, state.dict[token])
            state.__dict__[_KEY] = _Apart(version)
        return
    related = (s for _, _, s, _ in state.mapper.cascade_iterator("refresh-expire", state))
    remember((state, *related))


def recall(state: State) -> None:
    """Hold the version that the author of a delete, or a touch, saw, instead of reading the row.

    And the key: it is all that SQLAlchemy needs beside the version.
    """
    mapper = state.mapper
    token = _token_of(mapper)
    if token is None or token in state.dict or state.key is None:
        return
    seen = version_seen(state, token)
    if seen is None:
        return
    state.__dict__.pop(_KEY)  # held from here on: what a flush reads after its write is newer
    keys = zip(facts(mapper).keys, state.key[1], strict=True)
    for name, value in ((token, seen), *keys):
        state.dict[name] = value
        state.expired_attributes.discard(name)
    state.__dict__.pop(_KEY, None)  # or it would stand for the version that a write reads back


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
    token = _token_of(state.mapper)
    if token is not None:
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


def remember_revived(
    obj: Any, before: Mapping[Place, Any], written: Collection[State] = ()
) -> None:
    """The delete of ``obj`` is rolled back; the others are those of :func:`remember_rolled_back`.

    So is a delete that was refused, and wrote nothing.
    """
    state: State = instance_state(obj)
    if any_compared() and facts(state.mapper).compares:
        (values_unknown if state in written else remember_values)(state)
    token = _token_of(state.mapper)
    if token is not None and state.key is not None:
        version = before.get(place_of(state), version_seen(state, token))
        if version is not None:
            state.__dict__[_KEY] = version


def remember_rolled_back(
    session: Session,
    before: Mapping[Place, Any],
    written: Collection[State] = (),
    doubts: Mapping[Mapper[Any], Doubt] = _NONE,
) -> None:
    """The transaction, or a savepoint, is undone; ``before`` are the versions of rows it wrote.

    ``written`` are the objects of compared rows that it wrote: what they hold was never stored. So
    it may be with objects that were read after an UPDATE statement, told by ``doubts``.
    """
    nested = session.in_nested_transaction()
    expired = []
    manager = token = None
    compared = False
    for state in session.identity_map.all_states():
        if state.manager is not manager:
            manager = state.manager
            token = _token_of(manager.mapper)
            compared = any_compared() and facts(manager.mapper).compares
        doubt = doubts.get(facts(state.mapper).root) if doubts else None
        if doubt is not None and doubt.adds and state in doubt.held:
            doubt = None
        if doubt is not None:
            expired.append(state)
        if compared:
            unknown = doubt is not None or state in written or _moved_from_unknown(state, before)
            (values_unknown if unknown else remember_values)(state)
        if token is None or state.key is None:
            continue
        if doubt is not None and place_of(state) not in doubt.written:
            version = doubt.held.get(state)
            if version is None:
                _unread(session, state)
            else:
                state.__dict__[_KEY] = version
            continue
        version = before.get(place_of(state), NO_VALUE) if before else NO_VALUE
        if version is None:  # a statement had moved it, and nobody knows from which one
            _unread(session, state)
            expired.append(state)
            continue
        if version is NO_VALUE and not (nested and not state.modified):
            version = state.committed_state.get(token, state.dict.get(token, NO_VALUE))
        if version is not NO_VALUE and version is not None:
            state.__dict__[_KEY] = version
    if expired and nested:
        expire_with_savepoint(session, expired)  # what they have read since is undone, too


def _moved_from_unknown(state: State, before: Mapping[Place, Any]) -> bool:
    """Was the row changed by a statement, before the session had an object of it?"""
    return bool(before) and state.key is not None and before.get(place_of(state), 0) is None


def version_seen(state: State, token: str) -> Any:
    """The version that the object's author saw, without reading anything; ``None`` if none."""
    if token in state.dict:
        loaded = state.committed_state.get(token, NO_VALUE)
        return state.dict[token] if loaded is NO_VALUE else loaded  # assigned to a new object
    return _plain(state.__dict__.get(_KEY))


def _plain(seen: Any) -> Any:
    if seen is _NEVER:
        return None
    return seen.version if isinstance(seen, _Apart) else seen


def younger_names(state: State, version: Any) -> Collection[str]:
    """What a flush has loaded of a later row than ``version``: the author of the edit saw none."""
    seen, names = state.__dict__.get(_YOUNGER, (None, ()))
    return names if seen == version else ()


def forget(obj: Any) -> None:
    """The version of ``obj`` was moved by this session itself: the one that is read next counts."""
    state: State = obj if isinstance(obj, InstanceState) else instance_state(obj)
    state.__dict__.pop(_KEY, None)


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
        seen = state.__dict__[_KEY]
        state.__dict__[_KEY] = _Apart(after) if isinstance(seen, _Apart) else after


def moved_back(state: State, token: str, before: Any, after: Any) -> Callable[[], None]:
    """What takes :func:`moved_by_us` back, when the statement is undone."""
    return functools.partial(moved_by_us, state, token, after, before)


def watch_loads(mapper: Mapper[Any]) -> None:
    """From here on, look at what is read again for objects of the class that hold their rows."""
    with suppress(UnmappedColumnError):  # of another table: the first flush says so
        _token_of(mapper)


def _token_of(mapper: Mapper[Any]) -> str | None:
    try:
        return _tokens[mapper]
    except KeyError:
        token = _tokens[mapper] = facts(mapper).token or None
        if token is not None:
            _watch_loads(mapper, token)
        return token


def _watch_loads(mapper: Mapper[Any], token: str) -> None:
    """From here on, look at what is read again. Rows that are new to a session are not watched."""

    def refresh(state: State, context: Any, attrs: Collection[str] | None) -> None:
        if not isinstance(context, QueryContext):
            context = None  # a composite is made of what is held
        elif context.refresh_state is None:
            _without_older(state, context, attrs)
        if attrs is not None and token not in attrs:
            return
        seen = state.__dict__.pop(_KEY, None)
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
            if seen is _NEVER:
                state.__dict__[_KEY] = seen

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
    """A version attribute that is told by ``set_committed_value()`` which version was seen."""

    __slots__ = ()

    def set(self, state: State, dict_: Any, value: Any, *args: Any, **options: Any) -> None:
        """Assigned by the application: what was seen before counts, and is not read for it."""
        if self.key not in dict_:  # type: ignore[attr-defined]
            seen = version_seen(state, self.key)  # type: ignore[attr-defined]
            if seen is not None:
                dict_[self.key] = seen  # type: ignore[attr-defined]
                state.expired_attributes.discard(self.key)  # type: ignore[attr-defined]
                state.__dict__.pop(_KEY, None)
        super().set(state, dict_, value, *args, **options)  # type: ignore[misc]

    def set_committed_value(self, state: State, dict_: Any, value: Any) -> Any:
        state.__dict__.pop(_KEY, None)
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
