"""The scopes of the rows that a flush writes.

After the flush both sides of a row are known (:mod:`optilock._watched.rows.changes`). An object of
a class without a version, or whose scope was never loaded, is locked and read before the flush. A
value that stays unknown, because the database computes it, moves the table's row ``*``. A move too
many costs another transaction a retry; one too few would be a missed conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy.orm import NO_VALUE, Mapper, Session, SessionTransaction

from optilock._mapped import Identity, State, facts, identity_of
from optilock._mapping.scopes import has_scopes, rules_of
from optilock._undocumented.flushes import classes_to_flush, stored_states_to_flush
from optilock._watched.rows.changes import Before, as_read, changes_of
from optilock._watched.rows.in_order import in_order
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.scopes.transaction import (
    before_commit,
    has_scopes_to_end,
    is_to_end,
    note_moves,
    require_transaction,
    scopes_of,
)
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.order import add_step
from optilock.dialects import database_of

#: An attribute of a session: its objects before the flush that runs.
_BEFORE = "_optilock_scopes_before"


def move_scopes() -> None:
    """Let flushes and commits of all sessions move the versions of scopes, from here on."""
    add_step(
        "scopes",
        has_scopes_to_end,
        before_flush=_note_read,
        after_flush=_note_written,
        after_soft_rollback=_take_back,
    )
    add_step("moves", is_to_end, before_commit=before_commit)


def _take_back(session: Session, savepoint: SessionTransaction) -> None:
    if savepoint.nested:
        scopes_of(session).take_back(savepoint)


# -- before ----------------------------------------------------------------------------------------


def _note_read(session: Session, uow: Any, objects: Any) -> None:
    """Note the scopes as they were read; lock and read rows whose scopes were not."""
    scopes_of(session)
    for root in {facts(one).root for one in classes_to_flush(session) if has_scopes(one)}:
        require_transaction(connection_to_write(session, root, for_queries=True), root)
    noted: dict[State, Before] = {}
    unknown: dict[Mapper[Any], list[State]] = {}
    for state in stored_states_to_flush(session):
        if not has_scopes(state.mapper):
            continue
        old = {name: as_read(state, name) for name in rules_of(state.mapper).names}
        token = facts(state.mapper).token
        touched = token in state.committed_state
        noted[state] = Before(old, frozenset(state.expired_attributes), touched)
        if not token or NO_VALUE in old.values():
            unknown.setdefault(state.mapper, []).append(state)
    rows = {mapper: [identity_of(one) for one in states] for mapper, states in unknown.items()}
    for mapper, identities in in_order(session, uow, rows):
        found = stored_values(session, mapper, identities, lock=True)
        for state in unknown[mapper]:
            noted[state].old.update(found.get(identity_of(state), {}))
    session.__dict__[_BEFORE] = noted


def stored_values(
    session: Session, mapper: Mapper[Any], identities: Iterable[Identity], *, lock: bool
) -> Mapping[Identity, Values]:
    """Read the scopes' columns of stored rows."""
    connection = connection_to_write(session, mapper)
    if lock:
        database_of(connection.dialect).locks.begin_writing(connection, facts(mapper).table)
    names = tuple(name for name in rules_of(mapper).names if name in facts(mapper).columns)
    return read_stored(connection, mapper, list(identities), only=names, lock=lock)


# -- after -----------------------------------------------------------------------------------------


def _note_written(session: Session, uow: Any) -> None:
    """Note the scopes of all rows that the flush has written."""
    moves: dict[Mapper[Any], set[str]] = {}
    noted = session.__dict__.pop(_BEFORE, {})
    for change in changes_of(session, uow, _names_of, noted):
        rules = rules_of(change.state.mapper)
        old, new = (
            set(() if values is None else rules.keys(values))
            for values in (change.before, change.after)
        )
        keys = old ^ new if change.kept else old | new
        moves.setdefault(facts(change.state.mapper).root, set()).update(keys)
    for mapper, keys in moves.items():
        note_moves(session, mapper, keys)


def _names_of(mapper: Mapper[Any]) -> Collection[str] | None:
    return rules_of(mapper).names if has_scopes(mapper) else None
