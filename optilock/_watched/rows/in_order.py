"""Rows that a flush reads with a lock before it writes: in the order of all locks.

A flush writes tables in one order, and the rows of a table in the order of their keys
(:func:`~optilock._watched.rows.locked.order_of`). Two flushes that write the same rows then wait
for each other, and do not deadlock. Some rows are read with a lock before the first one is written:
roots that are not in the session, and rows whose scopes are unknown. If these were locked ahead of
rows that come before them, another flush could hold those already.

So all rows of the flush that come before the last of these are locked with them, one statement a
table. Promised rows that come first are checked before. A flush that has read all that it needs
sends nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session, UOWTransaction

from optilock._mapped import Identity, Place, State, facts, identity_of
from optilock._undocumented.flushes import states_marked_deleted, stored_states_to_flush
from optilock._watched.rows.locked import order_of
from optilock._watched.rows.stored import rows_at
from optilock._watched.session.connections import connection_to_write
from optilock._watched.session.record import RECORD_KEY
from optilock.dialects import database_of

#: Rows by their classes.
Rows = Mapping[Mapper[Any], Collection[Identity]]
#: The rows that a flush has locked so far, before it writes.
_held: WeakKeyDictionary[UOWTransaction, set[Place]] = WeakKeyDictionary()


def has_locked_rows(uow: UOWTransaction | None, places: Iterable[Place]) -> bool:
    """Return whether the flush has locked all of these rows."""
    held = None if uow is None else _held.get(uow)
    return held is not None and held.issuperset(places)


@dataclass
class _Turn:
    """The rows of one table."""

    #: The class at the root of the hierarchy.
    root: Mapper[Any]
    #: Rows that the caller reads, in the order of their keys.
    wanted: dict[Mapper[Any], list[Identity]] = field(default_factory=dict)
    #: Rows that the flush writes.
    written: set[Identity] = field(default_factory=set)
    deletes: bool = False

    def places(self) -> set[Place]:
        rows = self.written.union(*self.wanted.values())
        return {(self.root, identity) for identity in rows}


def in_order(
    session: Session, uow: UOWTransaction, wanted: Rows, more: Iterable[State] = ()
) -> Iterator[tuple[Mapper[Any], list[Identity]]]:
    """Yield the ``wanted`` rows, class by class; the caller reads them with a lock.

    The rows that the flush writes, and those of ``more`` objects, are locked in between, if they
    come before the last of these.
    """
    if not wanted:
        return
    turns = _turns_of(session, wanted, more)
    held = _held.setdefault(uow, set())
    record = session.__dict__.get(RECORD_KEY)
    if record is not None and record.promises and record.promises.end_next:
        record.promises.check_first(session, {place for one in turns for place in one.places()})
    for turn in turns:
        waiting = turn.places() - held
        if len(turn.wanted) != 1 or waiting.difference(
            (turn.root, identity) for rows in turn.wanted.values() for identity in rows
        ):
            _lock(session, turn, [identity for _, identity in waiting])
        yield from turn.wanted.items()
        held |= waiting


def _turns_of(session: Session, wanted: Rows, more: Iterable[State]) -> list[_Turn]:
    """Return the tables with rows to lock, in their order."""
    turns: dict[Any, _Turn] = {}
    for mapper, identities in wanted.items():
        turn = turns.setdefault(_place_of(mapper), _Turn(facts(mapper).root))
        turn.wanted[mapper] = _sorted(mapper, identities)
    last = max(turns)
    deleted = states_marked_deleted(session)
    changed = (one for one in stored_states_to_flush(session) if one.committed_state)
    for state in (*changed, *deleted, *more):
        root = facts(state.mapper).root
        if facts(root).table_if_any is not None and _place_of(root) <= last:
            turn = turns.setdefault(_place_of(root), _Turn(root))
            turn.written.add(identity_of(state))
            turn.deletes |= state in deleted
    return [turns[place] for place in sorted(turns)]


def _place_of(mapper: Mapper[Any]) -> Any:
    return order_of(facts(mapper).root, ())


def _sorted(mapper: Mapper[Any], identities: Collection[Identity]) -> list[Identity]:
    return sorted(identities, key=lambda identity: order_of(mapper, identity))


def _lock(session: Session, turn: _Turn, identities: list[Identity]) -> None:
    """Lock rows of one table, in one statement, and read nothing of them."""
    connection = connection_to_write(session, turn.root)
    database, table = database_of(connection.dialect), facts(turn.root).table
    database.locks.begin_writing(connection, table)
    if database.locks.one_lock or not identities:
        return
    keys, rows = facts(turn.root).rows

    def query() -> sa.Select[Any]:
        every = sa.select(*keys).select_from(rows).order_by(*keys)
        return database.locks.lock(every, table, deleting=turn.deletes)

    list(rows_at(connection, query, table, keys, _sorted(turn.root, identities)))
