"""Queries that read the version of a held object again, or make an object without one.

::

    session.scalars(
        select(Page).options(load_only(Page.body)).execution_options(populate_existing=True)
    )

The query replaces the version of each held page, and leaves out its title. Before that, the version
in which the title was read is noted (:mod:`optilock._watched.rows.seen`). So it is where the rows
of a text have no version; and the objects that such a query makes are noted as never read. Only the
rows of such queries are looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.orm import NO_VALUE, Mapper, QueryContext, Session
from sqlalchemy.orm.exc import UnmappedColumnError

from optilock._mapped import State, facts
from optilock._undocumented.flushes import is_flushing, states_marked_deleted
from optilock._undocumented.mappers import LoadedColumn, extend_attribute, names_left_out
from optilock._watched.rows.locked import LOCKED_ROWS, expire_older
from optilock._watched.rows.seen import (
    DECIDED,
    LEFT,
    NEVER_READ,
    NO_OLDER,
    SEEN_VERSION,
    YOUNGER,
    ShownVersions,
    hold_seen,
    is_doomed,
    note_shown,
    shown_versions,
    version_seen,
)
from optilock._watched.rows.unknown_versions import note_unread
from optilock._watched.session.record import is_watched

#: Classes whose rows are looked at when they are read again.
_watching: WeakSet[Mapper[Any]] = WeakSet()


class _VersionColumn(LoadedColumn):
    __slots__ = ()
    inherit_cache = True

    is_heard = staticmethod(is_watched)

    @staticmethod
    def replaced(state: State, held: dict[str, Any], name: str, names: Iterable[str]) -> None:
        note_shown(state, held, name, names)

    @staticmethod
    def left_out(
        session: Session, state: State, held: dict[str, Any], name: str, names: Iterable[str]
    ) -> None:
        if name in held:
            note_shown(state, held, name, names)
        elif name not in state.expired_attributes and SEEN_VERSION not in state.__dict__:
            note_unread(session, state)  # it is new


def note_reads(mapper: Mapper[Any]) -> None:
    """Note what queries leave older, or unread, of the objects of a class with a version."""
    extend_attribute(mapper.attrs[facts(mapper).token], _VersionColumn)


# -- objects that were read again ------------------------------------------------------------------


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
        is_read = attrs is None or token in attrs
        if query is None:
            if is_read:
                state.__dict__.pop(SEEN_VERSION, None)
            return
        session, held = query.session, state.dict
        if query.refresh_state is None:
            state.__dict__.pop(LEFT, None)  # the row was read
            if LOCKED_ROWS in session.__dict__:
                _without_older(state, query, attrs)
        if attrs is None:
            for name in names_left_out(state, query):
                del held[name]  # deferred, as in an object that is new to the session
        seen = getattr(state, SEEN_VERSION, None)
        if is_read and is_doomed(state, session):
            _keep_decided(state, token, attrs)
        elif (attrs is None and query.refresh_state is state) or (
            is_read and _are_read(seen, held, attrs, facts(mapper).covered)
        ):
            state.__dict__.pop(SEEN_VERSION, None)
        elif seen is not None and token in held:
            _settle_seen(state, token, seen, attrs, of_watched=is_watched(session))
        elif attrs is not None and is_flushing(session):
            _note_younger(state, token, attrs)

    event.listen(mapper.class_, "refresh", refresh, raw=True)
    impl: Any = mapper.class_manager[token].impl
    if not isinstance(impl, _VersionAttribute):
        impl.__class__ = _version_attribute(type(impl))  # type: ignore[arg-type]


def _are_read(
    seen: Any, held: dict[str, Any], attrs: Collection[str] | None, covered: frozenset[str]
) -> bool:
    """Return whether a query has read all values that the object holds, and all that it showed."""
    if attrs is not None and covered.intersection(held).difference(attrs):
        return False
    return type(seen) is not ShownVersions or seen.older.keys() <= held.keys()


def _settle_seen(
    state: State, token: str, seen: Any, attrs: Collection[str] | None, *, of_watched: bool
) -> None:
    """Let the object hold the version of the oldest value that it shows."""
    held, class_facts = state.dict, facts(state.manager.mapper)
    read = held.keys() if attrs is None else held.keys() & attrs
    older, bound = (seen.older, seen.newest) if type(seen) is ShownVersions else (NO_OLDER, seen)
    newest = held[token] if token in read else shown_versions(state, held, token)[1]
    left = {name: one for name, one in older.items() if name not in read} if older else {}
    if token in read:
        left.update(
            dict.fromkeys(class_facts.covered.intersection(held) - read - left.keys(), bound)
        )
    if left:
        counts = class_facts.covered_and_loaded.union(class_facts.covered.intersection(held))
        left = {n: one for n, one in left.items() if one != newest and n in counts}
    oldest = next((one for name, one in left.items() if name in held), newest)
    if oldest is NEVER_READ:
        oldest = None if of_watched else newest
    if left:
        setattr(state, SEEN_VERSION, ShownVersions(left, newest, oldest))
    else:
        delattr(state, SEEN_VERSION)
    if attrs is None:
        held[token] = oldest  # the query drops every edit
    elif oldest is not held[token]:
        hold_seen(state, token, oldest)


def _keep_decided(state: State, token: str, attrs: Collection[str] | None) -> None:
    """Keep the version in which a delete was decided, and note attributes with younger values."""
    seen = state.__dict__.pop(SEEN_VERSION, None)
    decided = state.__dict__.get(DECIDED)
    version = None if decided is None else decided.version
    if version is None:
        version = seen.newest if type(seen) is ShownVersions else seen
    if version is None:
        return
    held = None if version is NEVER_READ else version
    if state.dict.get(token) != held:
        names = state.dict.keys() if attrs is None else attrs
        state.__dict__[YOUNGER] = held, frozenset(names) - {token}
    state.dict[token] = held
    if version is NEVER_READ:
        state.__dict__[SEEN_VERSION] = version


def _note_younger(state: State, token: str, attrs: Collection[str]) -> None:
    """Note attributes that a flush reads, after it has recalled the version."""
    version, names = state.__dict__.get(YOUNGER, (NO_VALUE, ()))
    if version is not NO_VALUE and state.dict.get(token) == version:
        state.__dict__[YOUNGER] = version, frozenset({*names, *attrs}) - {token}


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
