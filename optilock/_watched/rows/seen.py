"""The version that the author of an edit saw, when values were expired or read again since.

::

    page = session.get(Page, 7)        # version 3
    session.commit()                   # expires it; another session writes version 4
    page.title = "New"                 # set without reading the row again
    session.commit()                   # ConcurrencyError: the author saw version 3

SQLAlchemy reads an expired version inside the flush, finds 4, and overwrites a change that the
author has not seen. So one rule holds in watched sessions: **the version belongs to the oldest
value that the object shows**.

Nothing is noted when a row is loaded. The version is noted just before values are lost: by a
commit, a rollback, ``expire`` or ``refresh``, and by a query that reads a held row again
(``populate_existing``, ``always_refresh``). The next read takes out the attributes that it loads.
While an older one is left, in the object or set without having been read, the object holds the
version of the oldest. A new transaction starts with what it reads: only edits, and values that were
kept, are older. ``refresh(obj)`` drops the edits and the memory.

A query may leave the version out (``from_statement()`` of a text). The object that it makes was
never read in a known version, and neither was an object that came from outside without one: their
edits are refused (:mod:`optilock._watched.rows.unknown_versions`).

After a rollback: :mod:`optilock._watched.rows.rolled_back`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import inspect
from sqlalchemy.orm import NO_VALUE, InstanceState, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import ObjectDeletedError

from optilock._mapped import State, facts
from optilock._mapping.original_values import (
    any_compared,
    remember_values,
    remembered_values,
    values_seen,
)
from optilock._undocumented.flushes import states_deleted_since, states_marked_deleted
from optilock._undocumented.mappers import read_expired
from optilock._watched.session.record import is_watched

#: An attribute of a state: the version that the author of an expired object has seen, or the
#: :class:`ShownVersions` versions of its values.
SEEN_VERSION = "_optilock_seen"
YOUNGER = "_optilock_younger"
DECIDED = "_optilock_decided"
#: Attributes that an object which is to be deleted was given, until its row is read for that.
LEFT = "_optilock_left"
#: Instead of a version: the object came from outside, and its author's version is unknown.
NEVER_READ = object()
NO_OLDER: Mapping[str, Any] = {}


class ShownVersions:
    """The versions of an object's values, when they were not all read in the same one."""

    __slots__ = ("held", "newest", "older")

    def __init__(self, older: dict[str, Any], newest: Any, held: Any = NO_VALUE) -> None:
        #: Attributes and the versions in which they were read, the oldest first.
        self.older = older
        #: The version of all other values, as long as the object holds ``held`` instead, or none.
        self.newest = newest
        self.held = held


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
    states = [state]
    if not names:
        states += [s for _, _, s, _ in state.mapper.cascade_iterator("refresh-expire", state)]
    remember_shown(states, names)


def remember_shown(states: Iterable[State], names: Collection[str] | None = None) -> None:
    """Remember the versions of the values that objects show, before ``names`` are expired."""
    for state in states:
        class_facts, held = facts(state.manager.mapper), state.dict
        if class_facts.compares:
            remember_values(state)
        token = class_facts.token
        if token in held and (not names or token in names):
            note_shown(state, held, token, class_facts.covered.intersection(held))


def note_shown(state: State, held: dict[str, Any], token: str, names: Iterable[str]) -> None:
    """Note the version of each value that the object shows, before some of them are replaced."""
    older, newest = shown_versions(state, held, token)
    if newest is not None:
        noted = dict.fromkeys(names, newest)
        if older:
            noted = {**older, **{n: newest for n in noted if n not in older}}
        setattr(state, SEEN_VERSION, ShownVersions(noted, newest))


def shown_versions(state: State, held: dict[str, Any], token: str) -> tuple[Mapping[str, Any], Any]:
    """Return attributes with older versions than the others, the oldest first, and theirs."""
    seen = getattr(state, SEEN_VERSION, None)
    older, version = (seen.older, seen.newest) if type(seen) is ShownVersions else (NO_OLDER, seen)
    if token not in held:
        return older, version
    before = state.committed_state.get(token, NO_VALUE)
    now = held[token] if before is NO_VALUE else before  # assigned to a new object
    return older, version if type(seen) is ShownVersions and now == seen.held else now


def recall_version(state: State) -> None:
    """Hold the version that the author of an edit saw, instead of reading the row.

    The key is held as well: SQLAlchemy needs no more than both.
    """
    mapper = state.mapper
    token = facts(mapper).token
    seen = getattr(state, SEEN_VERSION, None)
    if not token or seen is None or state.key is None:
        return
    version = version_seen(state, token)
    if version is None or (token in state.dict and type(seen) is not ShownVersions):
        return
    if token in state.dict:
        if version != shown_versions(state, state.dict, token)[1]:
            hold_seen(state, token, version)
            delattr(state, SEEN_VERSION)
        return
    delattr(state, SEEN_VERSION)
    keys = zip(facts(mapper).keys, state.key[1], strict=True)
    for name, value in ((token, version), *((n, v) for n, v in keys if n not in state.dict)):
        state.dict[name] = value
        state.expired_attributes.discard(name)
    setattr(state, YOUNGER, (version, frozenset()))  # values that the flush will read


# -- objects to be deleted -------------------------------------------------------------------------


def recall_for_delete(state: State) -> None:
    """Hold the version, as :func:`recall_version`, of an object that is to be deleted."""
    class_facts = facts(state.mapper)
    expired = [name for name in (class_facts.token, *class_facts.keys) if name not in state.dict]
    recall_version(state)
    if class_facts.token in expired and class_facts.token in state.dict:
        state.__dict__[LEFT] = expired


def read_before_delete(session: Session) -> None:
    """Read the expired attributes of objects that the flush deletes, for the last time.

    SQLAlchemy reads them for the version. Afterwards there is no row to read.
    """
    for obj in session.deleted:
        recall_for_delete(instance_state(obj))
        _read_rest(instance_state(obj))


def _read_rest(state: State) -> None:
    names = state.__dict__.pop(LEFT, None)
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
        state.__dict__[DECIDED] = _Decided(version_seen(state, token), stands)
    if any_compared() and facts(state.mapper).compares:
        remember_values(state)


def is_doomed(state: State, session: Session) -> bool:
    """Return whether the object is to be deleted."""
    if state in states_marked_deleted(session):
        return True
    decided = state.__dict__.get(DECIDED)
    return (
        decided is not None
        and decided.stands is not None
        and is_watched(session)
        and decided.stands()
    )


# -- the version seen ------------------------------------------------------------------------------


def version_seen(state: State, token: str) -> Any:
    """Return the version that the object's author saw, without a read; ``None`` if none."""
    held = state.dict
    older, version = shown_versions(state, held, token)
    if older:
        version = next((one for name, one in older.items() if name in held), version)
    return None if version is NEVER_READ else version


def is_never_read(state: State) -> bool:
    """Return whether the object shows a value whose version is unknown."""
    seen = getattr(state, SEEN_VERSION, None)
    if type(seen) is not ShownVersions:
        return seen is NEVER_READ
    return next((one for name, one in seen.older.items() if name in state.dict), None) is NEVER_READ


def may_be_unread(state: State) -> bool:
    """Return whether there are attributes whose versions are unknown."""
    seen = getattr(state, SEEN_VERSION, None)
    return seen is NEVER_READ or (type(seen) is ShownVersions and NEVER_READ in seen.older.values())


def hold_seen(state: State, token: str, version: Any) -> None:
    """Let the next write of the object name ``version``."""
    if token in state.committed_state:  # touched, or assigned
        state.committed_state[token] = version
    else:
        state.dict[token] = version


def younger_names(state: State, version: Any) -> Collection[str]:
    """Return attributes that a flush has loaded from the row after it had left ``version``.

    The author of the edit has not seen their values.
    """
    seen, names = state.__dict__.get(YOUNGER, (None, ()))
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
    decided = state.__dict__.get(DECIDED)
    if decided is not None and decided.version == before:
        state.__dict__[DECIDED] = _Decided(after, decided.stands)
    seen = getattr(state, SEEN_VERSION, None)
    if type(seen) is ShownVersions:
        older = {name: after if one == before else one for name, one in seen.older.items()}
        newest, held = (after if one == before else one for one in (seen.newest, seen.held))
        setattr(state, SEEN_VERSION, ShownVersions(older, newest, held))
    elif token not in state.dict:
        setattr(state, SEEN_VERSION, after)
    if token in state.dict:
        state.dict[token] = after


def undo_of_move(state: State, token: str, before: Any, after: Any) -> Callable[[], None]:
    """Return a function that takes :func:`follow_move` back, when the statement is undone."""
    return functools.partial(follow_move, state, token, after, before)
