"""SQLAlchemy's own bulk calls, such as ``session.bulk_save_objects()``.

They write rows by primary key, under the rules of :mod:`optilock.watched.statements.by_key`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock.errors import ConfigurationError
from optilock.mapped import Identity, State, facts, identity_of
from optilock.mapping.scopes import has_scopes
from optilock.undocumented.mappers import mark_unchanged
from optilock.watched.rows.seen import recall_version, version_seen
from optilock.watched.scopes.transaction import note_moves
from optilock.watched.session.connections import connection_to_write, refuse_autocommit
from optilock.watched.session.record import is_strict, session_record
from optilock.watched.statements import by_key
from optilock.watched.statements.call import Execute
from optilock.watched.statements.demand_checks import check_rows_by_key
from optilock.watched.statements.refusals import refuse_unversioned_class
from optilock.watched.statements.rollback_effects import (
    UnseenRows,
    note_unseen_rows,
)
from optilock.watched.statements.scopes import keys_of_new_row, moves_by_key
from optilock.watched.statements.written_rows import note_rows_by_key


def guarded_bulk_update(original: Execute) -> Execute:
    """Replace ``bulk_update_mappings``, and refuse rows without a version before it."""

    @functools.wraps(original)
    def bulk_update_mappings(self: Session, mapper: Any, mappings: Iterable[Any]) -> Any:
        session_record(self).note_other_statement(writes=True)
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if not isinstance(found, Mapper):
            return original(self, mapper, rows)
        if is_strict(self):
            refuse_unversioned_class(found)
        by_key.refuse_compared(found, "bulk_update_mappings()")
        if facts(found).token:
            by_key.refuse_assigned(found, "bulk_update_mappings()")
            by_key.refuse_unversioned(found, rows)
        _Update(self, found, rows).send(lambda: original(self, mapper, rows))
        return None

    return bulk_update_mappings


def guarded_bulk_insert(original: Execute) -> Execute:
    """Replace ``bulk_insert_mappings``: SQLAlchemy gives every row its first version."""

    @functools.wraps(original)
    def bulk_insert_mappings(
        self: Session, mapper: Any, mappings: Iterable[Any], *args: Any, **options: Any
    ) -> Any:
        session_record(self).note_other_statement(writes=True)
        rows = list(mappings)
        found = inspect(mapper, raiseerr=False)
        if not isinstance(found, Mapper):
            return original(self, mapper, rows, *args, **options)
        by_key.refuse_first_versions(found, rows)
        _insert(self, found, rows, lambda: original(self, mapper, rows, *args, **options))
        return None

    return bulk_insert_mappings


def guarded_bulk_save(original: Execute) -> Execute:
    """Replace ``bulk_save_objects``: objects of stored rows get the stored versions."""

    @functools.wraps(original)
    def bulk_save_objects(
        self: Session,
        objects: Iterable[Any],
        return_defaults: bool = False,
        update_changed_only: bool = True,
        preserve_order: bool = True,
    ) -> None:
        session_record(self).note_other_statement(writes=True)
        given = list(objects)  # a state holds its object weakly
        states = [instance_state(obj) for obj in given]
        if not preserve_order:
            states.sort(key=lambda state: (id(state.mapper), state.key is not None))
        written = {state for state in states if _is_saved(state, not update_changed_only)}
        _refuse_saved(self, written)
        parts: list[tuple[Mapper[Any], list[State], _Update | None]] = []
        for (mapper, stored), some in groupby(states, lambda one: (one.mapper, bool(one.key))):
            saved = list(some)
            if facts(mapper).guarded:
                refuse_autocommit(connection_to_write(self, mapper), by_key.WRITING_BY_KEY)
            rows = [_row_of(one, update_changed_only) for one in saved if stored and one in written]
            own = {identity_of(one): one for one in saved if stored}
            parts.append((mapper, saved, _Update(self, mapper, rows, own) if stored else None))
        for mapper, saved, update in parts:
            options = return_defaults, update_changed_only, preserve_order
            send = partial(original, self, [one.obj() for one in saved], *options)
            if update is None:
                _insert(self, mapper, [one.dict for one in saved], send)
            else:
                update.send(send)
                for state in saved if facts(mapper).token else ():
                    mark_unchanged(state)

    return bulk_save_objects


class _Update:
    """Rows to update by key, which are compared with the demands of the session."""

    def __init__(
        self,
        session: Session,
        mapper: Mapper[Any],
        rows: list[Any],
        objects: Mapping[Identity, State] | None = None,
    ) -> None:
        self._session, self._mapper, self._rows, self._objects = session, mapper, rows, objects
        check_rows_by_key(session, mapper, rows)
        self._moves = moves_by_key(session, mapper, rows)

    def send(self, send: Callable[[], Any]) -> None:
        """Send the rows, and note what they move."""
        session, mapper, rows = self._session, self._mapper, self._rows
        if facts(mapper).token:
            connection = connection_to_write(session, mapper)
            with by_key.writing_rows(session, connection, mapper, rows, self._objects):
                send()
        else:
            send()
        if self._moves:
            note_moves(session, mapper, self._moves)
        if events.listeners_to_rows:
            note_rows_by_key(session, mapper, "update", rows)


def _insert(
    session: Session, mapper: Mapper[Any], rows: list[Any], send: Callable[[], Any]
) -> None:
    """Send new rows. After a rollback, objects of them must be read again."""
    if facts(mapper).guarded:
        connection_to_write(session, mapper)  # begins the transaction
        note_unseen_rows(session, UnseenRows(added=[mapper]))
    send()
    if has_scopes(mapper):
        note_moves(session, mapper, {key for row in rows for key in keys_of_new_row(mapper, row)})
    if events.listeners_to_rows:
        note_rows_by_key(session, mapper, "insert", rows)


def _row_of(state: State, changed_only: bool) -> dict[str, Any]:
    """Return the row of an object as a mapping with its key, and the version seen."""
    known, names = facts(state.mapper), state.committed_state if changed_only else state.dict
    row = {name: state.dict[name] for name in names if name in known.columns and name in state.dict}
    row |= dict(zip(known.keys, identity_of(state), strict=True))
    return row | {known.token: version_seen(state, known.token)} if known.token else row


def _refuse_saved(session: Session, written: Iterable[State]) -> None:
    """Refuse objects of stored rows whose versions SQLAlchemy would not compare."""
    for state in written:
        if state.key is not None:
            if is_strict(session):
                refuse_unversioned_class(state.mapper)
            by_key.refuse_compared(state.mapper, "bulk_save_objects()")
            _refuse_assigned(state)
            _require_seen(state)


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
