"""Rows that the running transaction has read with a lock, and may not read otherwise later.

On MariaDB at REPEATABLE READ a locking read shows the newest row, and a plain read the row of the
transaction's snapshot. So an object may hold a version that is younger than what its deferred
columns, or those of a joined child, are read from later: old values under a new version, which no
check sees. What is loaded later for such an object is read with a lock, too
(:mod:`optilock.guard.later_reads`).

Which objects those are is told by the number that SQLAlchemy gives each query, and each object that
the query fills: nothing is done for a row. Objects that a resolver has made equal to their stored
row, which was read with a lock, are noted themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakSet

from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.state import InstanceState

from optilock.undocumented import expire_attribute, next_run, run_of

__all__ = ["LOCKED", "LockedRows", "expire_older", "locked_rows", "note_locked", "note_locking"]

State = InstanceState[Any]
#: An attribute of a session: its :class:`LockedRows`, once there were some.
LOCKED = "_optilock_locked"


class LockedRows:
    """The objects of one transaction that hold rows which were read with a lock."""

    def __init__(self, root: SessionTransaction) -> None:
        self.root = root
        self.runs: set[int] = set()
        self.states: WeakSet[State] = WeakSet()

    def __contains__(self, state: State) -> bool:
        return run_of(state) in self.runs or state in self.states


def locked_rows(session: Session) -> LockedRows | None:
    """Those of the running transaction; ``None`` if there are none."""
    found: LockedRows | None = session.__dict__.get(LOCKED)
    if found is None or found.root is not session.get_transaction():
        return None
    return found


def note_locked(session: Session, state: State) -> None:
    """The object is equal to its row, which was read with a lock."""
    _rows(session).states.add(state)


def note_locking(session: Session, since: int) -> None:
    """The queries that the session has sent since that number have read with a lock."""
    _rows(session).runs.update(range(since + 1, next_run()))


def _rows(session: Session) -> LockedRows:
    found = locked_rows(session)
    if found is None:
        root = session.get_transaction()
        assert root is not None
        found = session.__dict__[LOCKED] = LockedRows(root)
    return found


def expire_older(state: State, context: Any, names: Collection[str]) -> None:
    """A plain query has filled in what was not loaded: that may be older than the locked row."""
    rows = locked_rows(context.session)
    if rows is None or run_of(context) in rows.runs or state not in rows:
        return
    columns = state.mapper.column_attrs
    for name in names:
        if name in state.dict and name in columns:
            expire_attribute(state, name)
