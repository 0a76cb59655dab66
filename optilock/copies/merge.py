"""``session.merge()`` of a watched session: all of it, or none.

SQLAlchemy merges a graph object by object. When one copy is stale, others were merged already,
and new ones wait to be inserted. A conflict takes that back, and names every stale copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, inspect
from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.exc import StaleDataError

from optilock.copies.detached import (
    compare_in_merge,
    gone_entry,
    has_other_values,
    in_our_words,
    is_stale,
    moved_entry,
    stored_of,
)
from optilock.copies.members import members_of, refuse_unseen
from optilock.copies.rolled_back import follow_copy
from optilock.errors import ConcurrencyError, Entry
from optilock.mapped import State, facts
from optilock.mapping.compared import any_compared, values_are_unknown
from optilock.rows.seen import Memory, memories, remember_again, version_seen
from optilock.rows.sides import attempt_of
from optilock.rows.unknown_versions import BEFORE, hold, may_be_undone, never_read, never_seen


def guarded_merge(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Session.merge`` that tells stale copies as entries, and leaves nothing behind."""

    @functools.wraps(original)
    def merge(self: Session, instance: Any, **options: Any) -> Any:
        source = inspect(instance, raiseerr=False)
        if not isinstance(source, InstanceState):
            return original(self, instance, **options)
        _compare_versions_of(source)
        send = functools.partial(original, self, instance, **options)
        if options.get("load", True):
            return _read_and_merge(self, source, send)
        with _all_or_none(self, source, ()):
            merged = _merge(self, source, send)
            _follow_copies(self, source)
        return merged

    return merge


def _read_and_merge(session: Session, source: State, send: Callable[[], Any]) -> Any:
    """Merge over what is stored, as long as nobody else has changed that."""
    before_reading = memories(one for _, one in _merged(session, source))
    _refuse_unread(session, _copies(source))
    with _all_or_none(session, source, before_reading):
        _decide_copies(session, source)
        collections = members_of(session, _copies(source))
        merged = _merge(session, source, send)
        if any_compared() and (stale := _stale_by_value(session, source)):
            raise ConcurrencyError(stale)
        refuse_unseen(session, collections)
    return merged


def _merge(session: Session, source: State, send: Callable[[], Any]) -> Any:
    with _next_versions_apart(source) as following:
        merged = send()
    for copy, token, version in following:
        assert copy.key is not None
        setattr(session.identity_map[copy.key], token, version)
    return merged


@contextmanager
def _all_or_none(session: Session, source: State, before: Iterable[Memory]) -> Iterator[None]:
    """Take everything back at a conflict, and name all stale copies in it."""
    new, edited = session.new, session.dirty  # by identity: a dataclass may have no hash
    try:
        yield
    except StaleDataError as error:
        conflict = _conflict(session, source, error)
        _take_back(session, source, new, edited)
        _forget_reading(session, before)
        raise conflict from error.__cause__


def guarded_merge_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Session.merge_all`` (SQLAlchemy 2.1), one by one."""

    @functools.wraps(original)
    def merge_all(self: Session, instances: Iterable[Any], **options: Any) -> Sequence[Any]:
        return [self.merge(instance, **options) for instance in instances]

    return merge_all


def _compare_versions_of(state: State) -> None:
    """Classes that only have a ``version_id_col`` are compared as the mixin's are."""
    for one in _copies(state):
        token = one.mapper.version_id_col
        if isinstance(token, Column):
            compare_in_merge(one.mapper, token)


def _decide_copies(session: Session, state: State) -> None:
    """What came of the transaction that had written a copy when it was made?

    It was undone if the row still is in the version from before. It was committed if the row is in
    the copy's version and holds the same: the same number alone may be another writer's.
    """
    for copy in _copies(state):
        token = facts(copy.mapper).token
        if not token or not may_be_undone(copy) or copy.key is None:
            continue
        obj = session.get(copy.class_, tuple(copy.key[1]))
        if obj is None:
            continue  # a conflict, as for any copy of a row that is gone
        stored, known = stored_of(session, instance_state(obj)), facts(copy.mapper)
        held = attempt_of(copy, "verify", version_seen(copy, token)).original
        undone = copy.info[BEFORE] == stored[token]
        if undone or all(known.same(name, held[name], stored[name]) for name in held):
            hold(copy, stored[token])


def _follow_copies(session: Session, source: State) -> None:
    """What was merged without a look may yet be undone, as its source."""
    for copy, merged in _merged(session, source):
        follow_copy(copy, merged)


@contextmanager
def _next_versions_apart(state: State) -> Iterator[list[tuple[State, str, Any]]]:
    """The versions that the application has assigned to copies (``Manual``), for afterwards.

    SQLAlchemy would compare them, and not those that were read, with what is stored.
    """
    apart = []
    for copy in _copies(state):
        token = facts(copy.mapper).token
        if not token or copy.key is None or not facts(copy.mapper).by_application:
            continue
        seen = version_seen(copy, token)
        if copy.session is None and seen is not None and copy.dict.get(token, seen) != seen:
            apart.append((copy, token, copy.dict[token]))
            copy.dict[token] = seen
    try:
        yield apart
    finally:
        for copy, token, version in apart:
            copy.dict[token] = version


def _copies(state: State) -> Iterable[State]:
    yield state
    for _, _, one, _ in state.mapper.cascade_iterator("merge", state):
        yield one


def _merged(session: Session, source: State) -> Iterator[tuple[State, State]]:
    """The copies, each with the object of the session into which it goes."""
    for copy in _copies(source):
        merged = None if copy.key is None else session.identity_map.get(copy.key)
        if merged is not None and merged is not copy.obj():
            yield copy, instance_state(merged)


def _forget_reading(session: Session, before: Iterable[Memory]) -> None:
    """What the merge has read for expired objects was not read by the authors of their edits."""
    for memory in before:
        if memory.state.session is session and memory.state.persistent:
            session.expire(memory.state.obj(), memory.state.mapper.column_attrs.keys())
            remember_again(memory)


def _refuse_unread(session: Session, copies: Iterable[State]) -> None:
    """Refuse copies of stored rows that hold values, and not the version that these belong to.

    So is a pickle of an object that was edited when it was expired. SQLAlchemy would write it over
    whatever is stored.

    Raises:
        ConfigurationError: there is one; nothing was merged.
    """
    for copy in copies:
        token = facts(copy.mapper).token
        if not token or copy.key is None or token in copy.dict or copy.session is session:
            continue
        if never_read(copy):
            continue  # an INSERT that was undone can be made again: it conflicts with a stored row
        keys, ignored = facts(copy.mapper).keys, facts(copy.mapper).ignored
        holds_values = any(
            name in copy.dict and name not in keys and column not in ignored
            for name, column in facts(copy.mapper).columns.items()
        )
        if holds_values and version_seen(copy, token) is None:
            raise never_seen(copy.mapper, tuple(copy.key[1]))


def _conflict(session: Session, source: State, error: StaleDataError) -> ConcurrencyError:
    """All stale copies in one error, in SQLAlchemy's words."""
    found: dict[Any, Entry[Any]] = {}
    for entry in getattr(error, "entries", ()):
        found[entry.model, entry.identity] = entry
    for copy, merged in _merged(session, source):
        if is_stale(copy, merged):
            entry = moved_entry(session, copy, merged)
            found.setdefault((entry.model, entry.identity), entry)
    return ConcurrencyError(found.values(), in_our_words(str(error)))


def _stale_by_value(session: Session, source: State) -> list[Entry[Any]]:
    """The copies whose compared values are not what is stored now. SQLAlchemy compares none."""
    found = []
    for copy in _copies(source):
        key = copy.key
        if key is None and values_are_unknown(copy):  # its INSERT was rolled back
            key = copy.mapper.identity_key_from_instance(copy.obj())
        if key is None or not facts(copy.mapper).compares:
            continue
        merged = session.identity_map.get(key)
        if merged is None and copy.key is not None:
            found.append(gone_entry(copy, None))
        elif merged is None or merged is copy.obj():
            continue
        elif has_other_values(copy, instance_state(merged)):
            found.append(moved_entry(session, copy, instance_state(merged)))
    return found


def _take_back(
    session: Session, source: State, before: Collection[Any], edited: Collection[Any]
) -> None:
    for obj in session.new:
        if obj not in before and obj in session:
            session.expunge(obj)
    for _, merged in _merged(session, source):
        if merged.modified:
            session.expire(merged.obj())
    for obj in session.dirty:
        if obj not in edited:
            session.expire(obj)  # a member that the merge took out of a collection
