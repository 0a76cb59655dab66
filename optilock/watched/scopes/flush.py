"""The scopes of the rows that a flush writes.

After the flush both sides of a row are known: ``committed_state`` still has the values that were
read, and the object those that were written. The row was written under the version that was read,
so its stored scope is the one that was read. Where this is not true, the stored values decide:

* of a row that missed and was written all the same (``overwrite``, a resolver), its entry has them;
* a row that was added to at any version (``__version_commutes__``) is locked by our write, and read
  after it;
* an object of a class without a version, or whose scope was never loaded, is locked and read before
  the flush.

A value that stays unknown, because the database computes it, moves the table's row ``*``. A
move too many costs another transaction a retry; one too few would be a missed conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import NO_VALUE, Mapper, Session, SessionTransaction

from optilock.dialects import database_of
from optilock.mapped import Identity, State, facts, identity_of
from optilock.mapping.scopes import has_scopes, rules_of
from optilock.undocumented.flushes import classes_to_flush, stored_states_to_flush
from optilock.watched.rows.in_order import in_order
from optilock.watched.rows.stored import Values, read_stored
from optilock.watched.scopes.transaction import (
    before_commit,
    has_scopes_to_end,
    is_to_end,
    note_moves,
    require_transaction,
    scopes_of,
)
from optilock.watched.session.connections import connection_to_write
from optilock.watched.session.order import add_step
from optilock.watched.session.record import RECORD_KEY, keeps_version

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


class _Before(NamedTuple):
    """An object before the flush."""

    #: The stored values of the scopes' columns.
    old: Values
    expired: frozenset[str]
    #: Its version moves, even without another change.
    touched: bool


def _note_read(session: Session, uow: Any, objects: Any) -> None:
    """Note the scopes as they were read; lock and read rows whose scopes were not."""
    scopes_of(session)
    for root in {facts(one).root for one in classes_to_flush(session) if has_scopes(one)}:
        require_transaction(connection_to_write(session, root, for_queries=True), root)
    noted: dict[State, _Before] = {}
    unknown: dict[Mapper[Any], list[State]] = {}
    for state in stored_states_to_flush(session):
        if not has_scopes(state.mapper):
            continue
        old = {name: _as_read(state, name) for name in rules_of(state.mapper).names}
        token = facts(state.mapper).token
        touched = token in state.committed_state
        noted[state] = _Before(old, frozenset(state.expired_attributes), touched)
        if not token or NO_VALUE in old.values():
            unknown.setdefault(state.mapper, []).append(state)
    rows = {mapper: [identity_of(one) for one in states] for mapper, states in unknown.items()}
    for mapper, identities in in_order(session, uow, rows):
        found = stored_values(session, mapper, identities, lock=True)
        for state in unknown[mapper]:
            noted[state].old.update(found.get(identity_of(state), {}))
    session.__dict__[_BEFORE] = noted


def _as_read(state: State, name: str) -> Any:
    """Return the value that was read; ``NO_VALUE`` if none was."""
    if name in state.committed_state:
        return state.committed_state[name]
    return state.dict.get(name, NO_VALUE)


def stored_values(
    session: Session, mapper: Mapper[Any], identities: Iterable[Identity], *, lock: bool
) -> Mapping[Identity, Values]:
    """Read the scopes' columns of stored rows."""
    connection = connection_to_write(session, mapper)
    if lock:
        database_of(connection.dialect).begin_writing(connection, facts(mapper).table)
    names = tuple(name for name in rules_of(mapper).names if name in facts(mapper).columns)
    return read_stored(connection, mapper, list(identities), only=names, lock=lock)


# -- after -----------------------------------------------------------------------------------------


def _note_written(session: Session, uow: Any) -> None:
    """Note the scopes of all rows that the flush has written."""
    record = session.__dict__.get(RECORD_KEY)
    running = None if record is None else record.flush
    overtaken: list[State] = []
    moves: dict[Mapper[Any], set[str]] = {}
    noted = session.__dict__.pop(_BEFORE, {})
    for state, (deletes, only_listed) in list(uow.states.items()):
        if only_listed or not has_scopes(state.mapper):
            continue
        missed = None if running is None else running.missed_states.get(state)
        if missed is None and running is not None and state in running.skipped:
            continue
        keys = moves.setdefault(facts(state.mapper).root, set())
        if missed is not None:
            keys.update(_of_missed(state, missed))
        else:
            keys.update(_of_written(session, state, deletes, noted.get(state)))
            if running is not None and running.overtaken and state in running.overtaken:
                overtaken.append(state)
    for mapper, keys in moves.items():
        keys.update(_of_overtaken(session, mapper, overtaken))
        if keys:
            note_moves(session, mapper, keys)


def _of_written(
    session: Session, state: State, deletes: bool, before: _Before | None
) -> Iterator[str]:
    rules = rules_of(state.mapper)
    if state.key is None:
        yield from rules.keys(_written(state, rules.names))
        return
    if before is None:  # the flush itself has found it, by a relationship
        values = {name: _as_read(state, name) for name in rules.names}
        before = _Before(values, frozenset(), touched=False)
    old = set(rules.keys(before.old))
    if deletes:
        yield from old
        return
    computed = state.expired_attributes - before.expired
    new = set(rules.keys({**before.old, **_written_over(state, computed)}))
    if keeps_version(session, state.obj()):
        yield from old ^ new
    elif before.touched or _has_changed(state, computed):
        yield from old | new


def _of_missed(state: State, missed: Any) -> Iterator[str]:
    """Yield the scopes of a row that missed, if it was written all the same."""
    if missed.written is None:
        return
    rules = rules_of(state.mapper)
    if missed.entry.database is not None:
        yield from rules.keys(missed.entry.database)
    if missed.written == "after_update":
        yield from rules.keys(_written(state, rules.names))


def _of_overtaken(session: Session, root: Mapper[Any], states: Iterable[State]) -> Iterator[str]:
    identities = [identity_of(state) for state in states if facts(state.mapper).root is root]
    if identities:
        for row in stored_values(session, root, identities, lock=False).values():
            yield from rules_of(root).keys(row)


def _written(state: State, names: Iterable[str]) -> Values:
    """Return the values of a row that was inserted, without those that the database makes."""
    values = {}
    for name in names:
        if name in state.dict:
            values[name] = state.dict[name]
        elif name not in state.expired_attributes and _is_null(facts(state.mapper).columns[name]):
            values[name] = None
    return values


def _is_null(column: sa.Column[Any]) -> bool:
    """Return whether the column is NULL if an INSERT does not name it."""
    made = (column.default, column.server_default, column.computed, column.identity)
    return all(one is None for one in made)


def _written_over(state: State, computed: Collection[str]) -> Values:
    """Return the values that replace the stored ones; ``NO_VALUE`` if the database makes it."""
    return {
        name: NO_VALUE if name in computed else state.dict.get(name, NO_VALUE)
        for name in rules_of(state.mapper).names
        if name in state.committed_state or name in computed
    }


def _has_changed(state: State, computed: Collection[str]) -> bool:
    """Return whether more than ignored columns of the row were written."""
    known = facts(state.mapper)
    for name in (*state.committed_state, *computed):
        column = known.columns.get(name)
        if column is None or column in known.ignored:
            continue
        before = state.committed_state.get(name, NO_VALUE)
        if name in computed or name not in state.dict or before is NO_VALUE:
            return True
        if not known.same(name, state.dict[name], before):
            return True
    return False
