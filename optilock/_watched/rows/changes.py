"""The rows that a flush has written: each as it was stored before, and as it is stored after.

One function (:func:`changes_of`) answers this for scopes, roots and others, in whichever way a row
was written:

* by the flush itself. The row was written in the version that was read, so ``committed_state``
  still has the values before it;
* over a row that missed, as a resolver or a policy decided: its entry has the stored values. A row
  that the resolver has inserted again had none;
* in any version, as a sum is (``__version_commutes__``): our write has locked it, and it is read;
* by a new object with the key of a deleted one. SQLAlchemy sends one UPDATE, and this is the delete
  of the one and the insert of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import NO_VALUE, Mapper, Session, UOWTransaction

from optilock._mapped import State, facts, identity_of, place_of
from optilock._watched.rows.entries import AFTER_DELETE, Missed
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import RECORD_KEY, keeps_version

#: The attributes that count in rows of a class; ``None``: its rows do not.
Names = Callable[[Mapper[Any]], Collection[str] | None]


class Change(NamedTuple):
    """A row that was written. ``NO_VALUE`` is the value of an attribute that is unknown."""

    state: State
    #: ``None``: there was no row.
    before: Mapping[str, Any] | None
    #: ``None``: there is no row any more.
    after: Mapping[str, Any] | None
    #: The stored row need not be the one that the session had read.
    unforeseen: bool = False
    #: The version was kept (``no_bump``), so only values that differ count.
    kept: bool = False


class Before(NamedTuple):
    """An object before the flush."""

    #: The stored values of the attributes that count.
    old: Values
    expired: frozenset[str]
    #: Its version moves, even without another change.
    touched: bool


def as_read(state: State, name: str) -> Any:
    """Return the value that was read; ``NO_VALUE`` if none was."""
    if name in state.committed_state:
        return state.committed_state[name]
    return state.dict.get(name, NO_VALUE)


def changes_of(
    session: Session,
    uow: UOWTransaction,
    names_of: Names,
    noted: Mapping[State, Before] = MappingProxyType({}),
) -> Iterator[Change]:
    """Yield the rows that the flush has written; ``noted`` are objects before it.

    Rows whose version did not move are left out.
    """
    record = session.__dict__.get(RECORD_KEY)
    running = None if record is None else record.flush
    misses: Mapping[State, Missed] = {} if running is None else running.missed_states
    overtaken: Collection[State] = (running and running.overtaken) or ()
    skipped: Collection[State] = () if running is None else running.skipped
    missed_rows = {one.attempt.place for one in misses.values()}
    summed: dict[Mapper[Any], list[State]] = {}
    for state, (deletes, only_listed) in list(uow.states.items()):
        names = names_of(state.mapper)
        if names is None or state in skipped:
            continue
        missed = misses.get(state)
        if missed is not None:
            if missed.written is not None:
                after = None if missed.written == AFTER_DELETE else missed.after
                yield Change(state, missed.entry.database, after, unforeseen=True)
        elif only_listed and (not deletes or place_of(state) in missed_rows):
            continue
        elif state in overtaken:
            summed.setdefault(facts(state.mapper).root, []).append(state)
        elif state.key is None:
            yield Change(state, None, values_written(state, names))
        else:
            before = noted.get(state)
            if before is None:  # the flush itself has found it, by a relationship
                values = {name: as_read(state, name) for name in names}
                before = Before(values, frozenset(), touched=False)
            if deletes:
                yield Change(state, before.old, None)
            else:
                yield from _of_update(session, state, names, before)
    yield from _of_sums(session, names_of, summed)


def _of_update(
    session: Session, state: State, names: Collection[str], before: Before
) -> Iterator[Change]:
    computed = state.expired_attributes - before.expired
    written = {
        name: NO_VALUE if name in computed else state.dict.get(name, NO_VALUE)
        for name in names
        if name in state.committed_state or name in computed
    }
    kept = keeps_version(session, state.obj())
    if kept or before.touched or _has_changed(state, computed):
        yield Change(state, before.old, {**before.old, **written}, kept=kept)


def _of_sums(
    session: Session, names_of: Names, summed: Mapping[Mapper[Any], list[State]]
) -> Iterator[Change]:
    """Read rows that were added to; our own write has locked them."""
    for root, states in summed.items():
        names = tuple(name for name in names_of(root) or () if name in facts(root).columns)
        identities = [identity_of(state) for state in states]
        connection = connection_to_write(session, root)
        found = read_stored(connection, root, identities, only=names, lock=False)
        for state in states:
            row = found.get(identity_of(state))
            if row is not None:
                yield Change(state, row, row, unforeseen=True)


def values_written(state: State, names: Iterable[str]) -> Values:
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
