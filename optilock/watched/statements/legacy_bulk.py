"""SQLAlchemy's own bulk calls, such as ``session.bulk_save_objects()``.

They write rows by primary key, and what :mod:`optilock.watched.statements.by_key` says of those is
true of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.mapped import State, facts, identity_of, place_of
from optilock.mapping.moves import moving_joined
from optilock.undocumented.mappers import take_as_stored
from optilock.watched.rows.entries import Attempt
from optilock.watched.rows.seen import moved_back, recall, version_seen
from optilock.watched.session.connections import connection_to_write, refuse_autocommit
from optilock.watched.session.watched import is_strict, watched
from optilock.watched.statements.by_key import (
    WRITING,
    attempts_of,
    leaves_versions,
    move_left,
    refuse_assigned,
    refuse_compared,
    refuse_first_versions,
    refuse_unversioned,
    telling,
)
from optilock.watched.statements.call import Execute
from optilock.watched.statements.demand_checks import refuse_by_key
from optilock.watched.statements.refusals import refuse_class
from optilock.watched.statements.rollback_effects import Unseen, note, note_unseen, versions_after


def guarded_bulk_update(original: Execute) -> Execute:
    """``bulk_update_mappings``: rows without a version are refused before anything is sent."""

    @functools.wraps(original)
    def bulk_update_mappings(self: Session, mapper: Any, mappings: Iterable[Any]) -> None:
        watched(self).sent_more = True
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper):
            if is_strict(self):
                refuse_class(found)
            refuse_compared(found, "bulk_update_mappings()")
            refuse_by_key(self, found, rows)
        if not isinstance(found, Mapper) or not facts(found).token:
            original(self, mapper, rows)
            return
        refuse_assigned(found, "bulk_update_mappings()")
        refuse_unversioned(found, rows)
        refuse_autocommit(connection_to_write(self, found), WRITING)
        note(self, found)
        with telling(self, lambda: attempts_of(found, rows)), moving_joined():
            original(self, mapper, rows)
        if leaves_versions(found):
            move_left(connection_to_write(self, found), found, rows)

    return bulk_update_mappings


def guarded_bulk_insert(original: Execute) -> Execute:
    """``bulk_insert_mappings``: SQLAlchemy gives every row its first version."""

    @functools.wraps(original)
    def bulk_insert_mappings(
        self: Session, mapper: Any, mappings: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        watched(self).sent_more = True
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper):
            refuse_first_versions(found, rows)
            if facts(found).guarded:
                _note_added(self, found)
        original(self, mapper, rows, *args, **options)

    return bulk_insert_mappings


def guarded_bulk_save(original: Execute) -> Execute:
    """``bulk_save_objects``: the objects of stored rows know the version that they have then."""

    @functools.wraps(original)
    def bulk_save_objects(
        self: Session, objects: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        watched(self).sent_more = True
        saved = list(objects)
        all_columns = not options.get("update_changed_only", args[1] if args[1:] else True)
        states = [instance_state(obj) for obj in saved]
        written = [state for state in states if _is_saved(state, all_columns)]
        for state in written:
            if state.key is not None:
                if is_strict(self):
                    refuse_class(state.mapper)
                refuse_compared(state.mapper, "bulk_save_objects()")
                _refuse_assigned(state)
                _require_seen(state)
        for mapper in {state.mapper for state in written if facts(state.mapper).guarded}:
            refuse_autocommit(connection_to_write(self, mapper), WRITING)
        for mapper in {state.mapper: None for state in written if state.key is not None}:
            if facts(mapper).token:
                note(self, mapper)
        for mapper in {state.mapper: None for state in written if state.key is None}:
            if facts(mapper).guarded:
                _note_added(self, mapper)
        _refuse_undemanded(self, written)
        with telling(self, lambda: _attempts_saved(written)), moving_joined():
            original(self, saved, *args, **options)
        _move_left(self, written, all_columns=all_columns)
        _follow(self, states)

    return bulk_save_objects


def _move_left(session: Session, written: Iterable[State], *, all_columns: bool) -> None:
    """The versions of rows of which only columns of joined tables were written."""
    for state in written:
        known = facts(state.mapper)
        if state.key is not None and leaves_versions(state.mapper):
            names = state.dict if all_columns else state.committed_state
            row = {name: None for name in names if name in known.columns}
            row |= dict(zip(known.keys, identity_of(state), strict=True))
            row[known.token] = version_seen(state, known.token)
            move_left(connection_to_write(session, state.mapper), state.mapper, [row])


def _refuse_undemanded(session: Session, written: Iterable[State]) -> None:
    """Of each row that is to be updated it is asked what the session demands."""
    if watched(session).demands is None:
        return
    by_mapper: dict[Mapper[Any], list[Any]] = {}
    for state in written:
        if state.key is not None:
            row = dict(zip(facts(state.mapper).keys, identity_of(state), strict=True))
            by_mapper.setdefault(state.mapper, []).append(row)
    for mapper, rows in by_mapper.items():
        refuse_by_key(session, mapper, rows)


def _note_added(session: Session, mapper: Mapper[Any]) -> None:
    """If the statement is rolled back, objects of the rows that it inserts must be read again."""
    connection_to_write(session, mapper)  # begins the transaction
    note_unseen(session, Unseen(added=[mapper]))


def _is_saved(state: State, all_columns: bool) -> bool:
    """Is its row written? SQLAlchemy moves a version though nothing else has changed."""
    return state.modified or all_columns or bool(facts(state.mapper).token)


def _refuse_assigned(state: State) -> None:
    """SQLAlchemy would compare the version that was assigned, not the one that was read."""
    mapper = state.mapper
    if facts(mapper).by_application and facts(mapper).token in state.committed_state:
        raise ConfigurationError(
            f"The version of {mapper.class_.__name__} is the application's (Manual), and"
            " bulk_save_objects() compares the one that was assigned with the stored one, which"
            " never is the same: flush the session instead. Nothing was sent."
        )


def _require_seen(state: State) -> None:
    """An object that a commit has expired is saved in the version that was seen.

    Raises:
        ConfigurationError: nobody has seen one.
    """
    token = facts(state.mapper).token
    recall(state)
    if token and state.dict.get(token) is None:
        raise ConfigurationError(
            f"{state.class_.__name__} {identity_of(state) if state.key else ()!r} cannot be saved"
            f" by bulk_save_objects(): its {token!r} was never read, and without it another"
            " writer's change would be overwritten. Read the row first. Nothing was sent."
        )


def _attempts_saved(states: Iterable[State]) -> list[Attempt]:
    """Those of objects in the session have lost their edits by now: it is rolled back."""
    found = []
    for state in states:
        token = facts(state.mapper).token
        if state.key is None or not token:
            continue
        keys = facts(state.mapper).keys
        row = {name: state.dict[name] for name in state.committed_state if name in state.dict}
        row.update(zip(keys, state.key[1], strict=True))
        row[token] = version_seen(state, token)
        found += attempts_of(state.mapper, [row])
    return found


def _follow(session: Session, states: Iterable[State]) -> None:
    """Objects of stored rows know the versions that they have now.

    A counted one is known; one that SQLAlchemy or the database has made is read, while the row is
    still ours: later it would be another writer's.
    """
    by_mapper: dict[Mapper[Any], list[State]] = {}
    for state in states:
        if state.key is not None and facts(state.mapper).token in state.dict:
            by_mapper.setdefault(state.mapper, []).append(state)
    known = watched(session)
    for mapper, some in by_mapper.items():
        key = facts(mapper).token
        held = [(state, state.dict[key]) for state in some]
        following = dict(held)  # by the application, unless somebody else makes it
        if not facts(mapper).by_application:
            connection = connection_to_write(session, mapper)
            following = versions_after(connection, mapper, held, certain=True)
        for state, before in held:
            after = following[state]
            state.dict[key] = after
            known.move(place_of(state), before, moved_back(state, key, before, after))
            take_as_stored(state)
