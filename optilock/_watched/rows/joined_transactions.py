"""Versions that objects hold while a connection's transaction, which a session has joined, goes on.

::

    with engine.connect() as connection, connection.begin() as outer:
        with SessionLocal(bind=connection) as session:
            session.get_one(Page, 7).title = "New"    # version 3
            session.commit()                          # version 4, for the session
        outer.rollback()                              # nothing is stored: version 3

The COMMIT of such a session, or its end, is none of the connection. So the versions from before its
writes are kept with the connection, and an object gets its own back when the transaction, or a
savepoint around the writes, is rolled back. So do objects that sessions have read on the
connection since. Where the version is unknown (a row that was inserted), the object must be read
before it is edited. A connection that is garbage-collected has rolled back, too.

A connection has one listener for each of its events, for as long as it lives, and nothing is kept
once its transaction has ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from optilock._mapped import Place, State, facts, place_of
from optilock._mapping.original_values import values_unknown
from optilock._undocumented.flushes import states_inserted_in
from optilock._undocumented.statements import listen_on, savepoints_of
from optilock._watched.rows.unknown_versions import drop_version, hold_version
from optilock._watched.session.record import RECORD_KEY, SessionRecord
from optilock._watched.session.values import PriorVersions

#: Instead of a version: the row was not written.
STORED = object()


def version_before(state: State, before: PriorVersions) -> Any:
    """Return the version stored after an undo, or ``STORED``; ``None``: it is unknown."""
    if state.key is None or not facts(state.mapper).token:
        return STORED
    place = place_of(state)
    doubt = before.doubts.get(facts(state.mapper).root)
    if doubt is not None and place not in doubt.written:
        return doubt.held.get(state)
    return before.versions.get(place, STORED)


def give_back(state: State, version: Any, compared: Iterable[State]) -> None:
    """Give the object the version that is stored, because a write of its row was undone."""
    if facts(state.mapper).compares and (version is None or state in compared):
        values_unknown(state)
    if version is None:
        drop_version(state)
    elif version is not STORED:
        hold_version(state, version)


class _Writes:
    """What one session has left in a connection's transaction."""

    def __init__(self, connection: Connection, record: SessionRecord) -> None:
        self.savepoints = frozenset(savepoints_of(connection))
        self.before = record.before((0, 0, 0), record.now())
        self.compared = record.compared
        inserted = [s for one in record.transactions() for s in states_inserted_in(one)]
        self.inserted: set[Place] = {place_of(state) for state in inserted if state.key is not None}
        #: Objects that may hold the writes.
        self.states: WeakSet[State] = WeakSet(inserted)

    def undo(self, sessions: Iterable[Session]) -> None:
        held = [state for one in sessions for state in one.identity_map.all_states()]
        for state in {*self.states, *held}:
            version = self.version_of(state)
            if version is not STORED:
                give_back(state, version, self.compared)

    def version_of(self, state: State) -> Any:
        if state.key is None or place_of(state) in self.inserted:
            return STORED if state.key is None else None
        return version_before(state, self.before)


class _Outcome:
    """The writes of a connection's transaction, and the sessions that have been on it since."""

    def __init__(self) -> None:
        self.writes: list[_Writes] = []
        self.sessions: WeakSet[Session] = WeakSet()

    def undo(self, savepoint: str | None = None) -> None:
        """Undo all writes, or those inside of a savepoint, the last ones first."""
        for one in reversed(self.writes):
            if savepoint is None or savepoint in one.savepoints:
                one.undo(self.sessions)
                self.writes.remove(one)

    def over(self) -> None:
        """Forget the writes, which are stored."""
        self.writes.clear()
        self.sessions.clear()


_outcomes: WeakKeyDictionary[Connection, _Outcome] = WeakKeyDictionary()


def await_outcome(session: Session, record: SessionRecord) -> None:
    """Keep the versions from before the writes that a session leaves in others' transactions."""
    states = [*session.identity_map.all_states(), *(s for d in record.departed for s in d.states)]
    for connection in record.connections:
        if not connection.closed and connection.in_transaction():
            writes = _Writes(connection, record)
            if writes.inserted or writes.before.versions or writes.before.doubts:
                writes.states.update(states)
                _outcome_of(connection).writes.append(writes)
                _outcomes[connection].sessions.add(session)


def _outcome_of(connection: Connection) -> _Outcome:
    found = _outcomes.get(connection)
    if found is None:
        found = _outcomes[connection] = _Outcome()
        listen_on(connection, "rollback", lambda _: found.undo())
        listen_on(connection, "rollback_savepoint", lambda _, name, __: found.undo(name))
        listen_on(connection, "commit", lambda _: found.over())
        weakref.finalize(connection, found.undo).atexit = False
    return found


def reads_joined(session: Session, connection: Connection) -> None:
    """Note a session that may read what others have left in the connection's transaction."""
    if _outcomes and connection in _outcomes:
        _outcomes[connection].sessions.add(session)


def outcomes_awaited() -> bool:
    """Return whether sessions have left writes in transactions of connections."""
    return bool(_outcomes)


def leave_joined(session: Session, states: Iterable[State]) -> None:
    """Note objects that leave a session which may have read such writes."""
    record: SessionRecord | None = session.__dict__.get(RECORD_KEY)
    for connection in () if record is None or not _outcomes else record.connections:
        for writes in _outcomes[connection].writes if connection in _outcomes else ():
            writes.states.update(states)


def version_awaited(state: State) -> Any:
    """Return the version before writes that may yet be undone, or ``STORED``."""
    for outcome in _outcomes.values():
        for writes in outcome.writes:
            if state in writes.states or state.session in outcome.sessions:
                version = writes.version_of(state)
                if version is not STORED:
                    return version
    return STORED
