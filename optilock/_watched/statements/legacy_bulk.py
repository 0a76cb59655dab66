"""SQLAlchemy's own bulk calls, such as ``session.bulk_save_objects()``.

They write rows by primary key, under the rules of :mod:`optilock._watched.statements.by_key`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock._mapped import State, facts, identity_of, place_of
from optilock._mapping.moves import declare_joined_moves
from optilock._mapping.scopes import has_scopes
from optilock._undocumented.mappers import mark_unchanged
from optilock._watched.rows.entries import Attempt
from optilock._watched.rows.seen import recall_version, undo_of_move, version_seen
from optilock._watched.scopes.transaction import note_moves
from optilock._watched.session.connections import connection_to_write, refuse_autocommit
from optilock._watched.session.record import is_strict, session_record
from optilock._watched.statements import by_key
from optilock._watched.statements.call import Execute
from optilock._watched.statements.demand_checks import check_rows_by_key
from optilock._watched.statements.refusals import refuse_unversioned_class
from optilock._watched.statements.rollback_effects import (
    UnseenRows,
    note_statement,
    note_unseen_rows,
    versions_after,
)
from optilock._watched.statements.scopes import keys_of_new_row, moves_by_key
from optilock._watched.statements.written_rows import note_rows_by_key, note_saved
from optilock.errors import ConfigurationError


def guarded_bulk_update(original: Execute) -> Execute:
    """Replace ``bulk_update_mappings``, and refuse rows without a version before it."""

    @functools.wraps(original)
    def bulk_update_mappings(self: Session, mapper: Any, mappings: Iterable[Any]) -> None:
        session_record(self).note_other_statement(writes=True)
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper):
            if is_strict(self):
                refuse_unversioned_class(found)
            by_key.refuse_compared(found, "bulk_update_mappings()")
            check_rows_by_key(self, found, rows)
        if not isinstance(found, Mapper) or not facts(found).token:
            keys = moves_by_key(self, found, rows) if isinstance(found, Mapper) else set()
            original(self, mapper, rows)
            if keys:
                note_moves(self, found, keys)
            if events.listeners_to_rows and isinstance(found, Mapper):
                note_rows_by_key(self, found, "update", rows)
            return
        by_key.refuse_assigned(found, "bulk_update_mappings()")
        by_key.refuse_unversioned(found, rows)
        refuse_autocommit(connection_to_write(self, found), by_key.WRITING_BY_KEY)
        note_statement(self, found)
        keys = moves_by_key(self, found, rows)
        with (
            by_key.report_stale_rows(self, lambda: by_key.attempts_of(found, rows)),
            declare_joined_moves(),
        ):
            original(self, mapper, rows)
        if by_key.leaves_versions(found):
            by_key.move_left_versions(connection_to_write(self, found), found, rows)
        note_moves(self, found, keys)
        if events.listeners_to_rows:
            note_rows_by_key(self, found, "update", rows)

    return bulk_update_mappings


def guarded_bulk_insert(original: Execute) -> Execute:
    """Replace ``bulk_insert_mappings``: SQLAlchemy gives every row its first version."""

    @functools.wraps(original)
    def bulk_insert_mappings(
        self: Session, mapper: Any, mappings: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        session_record(self).note_other_statement(writes=True)
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if isinstance(found, Mapper):
            by_key.refuse_first_versions(found, rows)
            if facts(found).guarded:
                _note_added(self, found)
        original(self, mapper, rows, *args, **options)
        if isinstance(found, Mapper) and has_scopes(found):
            keys = {key for row in rows for key in keys_of_new_row(found, row)}
            note_moves(self, found, keys)
        if events.listeners_to_rows and isinstance(found, Mapper):
            note_rows_by_key(self, found, "insert", rows)

    return bulk_insert_mappings


def guarded_bulk_save(original: Execute) -> Execute:
    """Replace ``bulk_save_objects``: objects of stored rows get the stored versions."""

    @functools.wraps(original)
    def bulk_save_objects(
        self: Session, objects: Iterable[Any], *args: Any, **options: Any
    ) -> None:
        session_record(self).note_other_statement(writes=True)
        saved = list(objects)
        all_columns = not options.get("update_changed_only", args[1] if args[1:] else True)
        states = [instance_state(obj) for obj in saved]
        written = [state for state in states if _is_saved(state, all_columns)]
        _refuse_saved(self, written)
        _note_saved(self, written)
        _refuse_undemanded(self, written)
        moves = list(_moves_saved(self, written))
        before = {one: one.dict.get(facts(one.mapper).token) for one in written if one.key}
        with (
            by_key.report_stale_rows(self, lambda: _attempts_saved(written)),
            declare_joined_moves(),
        ):
            original(self, saved, *args, **options)
        _move_left(self, written, all_columns=all_columns)
        _follow(self, states)
        for mapper, keys in moves:
            note_moves(self, mapper, keys)
        if events.listeners_to_rows:
            note_saved(self, written, before)

    return bulk_save_objects


def _moves_saved(
    session: Session, written: Iterable[State]
) -> Iterator[tuple[Mapper[Any], set[str]]]:
    """Yield the scopes of the objects, as they are stored and as they are to be."""
    for state in written:
        if not has_scopes(state.mapper):
            continue
        if state.key is None:
            yield state.mapper, set(keys_of_new_row(state.mapper, state.dict))
        else:
            yield state.mapper, moves_by_key(session, state.mapper, [state.dict | _key_of(state)])


def _refuse_saved(session: Session, written: Iterable[State]) -> None:
    """Refuse objects of stored rows whose versions SQLAlchemy would not compare."""
    for state in written:
        if state.key is not None:
            if is_strict(session):
                refuse_unversioned_class(state.mapper)
            by_key.refuse_compared(state.mapper, "bulk_save_objects()")
            _refuse_assigned(state)
            _require_seen(state)


def _note_saved(session: Session, written: list[State]) -> None:
    """Begin the transaction on each connection, and record what its rollback takes back."""
    for mapper in {state.mapper for state in written if facts(state.mapper).guarded}:
        refuse_autocommit(connection_to_write(session, mapper), by_key.WRITING_BY_KEY)
    for mapper in {state.mapper: None for state in written if state.key is not None}:
        if facts(mapper).token:
            note_statement(session, mapper)
    for mapper in {state.mapper: None for state in written if state.key is None}:
        if facts(mapper).guarded:
            _note_added(session, mapper)


def _move_left(session: Session, written: Iterable[State], *, all_columns: bool) -> None:
    """Move the versions of rows where only columns of joined tables were written."""
    for state in written:
        class_facts = facts(state.mapper)
        if state.key is not None and by_key.leaves_versions(state.mapper):
            names = state.dict if all_columns else state.committed_state
            row = {name: None for name in names if name in class_facts.columns} | _key_of(state)
            row[class_facts.token] = version_seen(state, class_facts.token)
            connection = connection_to_write(session, state.mapper)
            by_key.move_left_versions(connection, state.mapper, [row])


def _key_of(state: State) -> dict[str, Any]:
    return dict(zip(facts(state.mapper).keys, identity_of(state), strict=True))


def _refuse_undemanded(session: Session, written: Iterable[State]) -> None:
    """Compare each row that is to be updated with the demands of the session."""
    if session_record(session).demands is None:
        return
    by_mapper: dict[Mapper[Any], list[Any]] = {}
    for state in written:
        if state.key is not None:
            by_mapper.setdefault(state.mapper, []).append(_key_of(state))
    for mapper, rows in by_mapper.items():
        check_rows_by_key(session, mapper, rows)


def _note_added(session: Session, mapper: Mapper[Any]) -> None:
    """Record an INSERT: after its rollback, objects of its rows must be read again."""
    connection_to_write(session, mapper)  # begins the transaction
    note_unseen_rows(session, UnseenRows(added=[mapper]))


def _is_saved(state: State, all_columns: bool) -> bool:
    """Return whether its row is written. SQLAlchemy moves a version even without another change."""
    return state.modified or all_columns or bool(facts(state.mapper).token)


def _refuse_assigned(state: State) -> None:
    """Refuse an assigned version: SQLAlchemy would compare it instead of the one that was read."""
    mapper = state.mapper
    if facts(mapper).by_application and facts(mapper).token in state.committed_state:
        raise ConfigurationError(
            f"The version of {mapper.class_.__name__} is the application's (Manual), and"
            " bulk_save_objects() compares the one that was assigned with the stored one, which"
            " never is the same: flush the session instead. Nothing was sent."
        )


def _require_seen(state: State) -> None:
    """Hold the version that was seen, for an object that a commit has expired.

    Raises:
        ConfigurationError: no version was seen.
    """
    token = facts(state.mapper).token
    recall_version(state)
    if token and state.dict.get(token) is None:
        raise ConfigurationError(
            f"{state.class_.__name__} {identity_of(state) if state.key else ()!r} cannot be saved"
            f" by bulk_save_objects(): its {token!r} was never read, and without it another"
            " writer's change would be overwritten. Read the row first. Nothing was sent."
        )


def _attempts_saved(states: Iterable[State]) -> list[Attempt]:
    """Return our side. Objects in the session have lost their edits: it is rolled back."""
    found = []
    for state in states:
        token = facts(state.mapper).token
        if state.key is not None and token:
            row = {name: state.dict[name] for name in state.committed_state if name in state.dict}
            row |= {**_key_of(state), token: version_seen(state, token)}
            found += by_key.attempts_of(state.mapper, [row])
    return found


def _follow(session: Session, states: Iterable[State]) -> None:
    """Give objects of stored rows their new versions.

    A counted one is known. One that SQLAlchemy or the database has made is read while the row is
    still locked: later it could be that of another transaction.
    """
    by_mapper: dict[Mapper[Any], list[State]] = {}
    for state in states:
        if state.key is not None and facts(state.mapper).token in state.dict:
            by_mapper.setdefault(state.mapper, []).append(state)
    record = session_record(session)
    for mapper, some in by_mapper.items():
        key = facts(mapper).token
        held = [(state, state.dict[key]) for state in some]
        following = dict(held)  # made by the application, unless one is read below
        if not facts(mapper).by_application:
            connection = connection_to_write(session, mapper)
            following = versions_after(connection, mapper, held, certain=True)
        for state, before in held:
            after = following[state]
            state.dict[key] = after
            record.move(place_of(state), before, undo_of_move(state, key, before, after))
            mark_unchanged(state)
