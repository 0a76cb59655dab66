"""Lock rows and look: which of these objects' rows are in another version than they hold?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import Attempt, Values, attempt_of, entry_of, read_stored
from optilock.dialects import database_of
from optilock.entry import Entry
from optilock.guard.unversioned import no_version
from optilock.resolvers import Resolution
from optilock.versioned import token_attribute

__all__ = ["Stale", "look"]

State = InstanceState[Any]


@dataclass(eq=False)
class Stale:
    """An object whose row has moved, found before anything was written on its account."""

    state: State
    obj: Any
    connection: Connection
    attempt: Attempt
    stored: Values | None
    #: What is wrong with the row itself, which no resolver can settle.
    problem: Exception | None = None
    resolution: Resolution | None = None

    @cached_property
    def entry(self) -> Entry[Any]:
        return entry_of(self.attempt, self.stored)


def look(session: Session, states: Iterable[State], *, deleting: bool) -> list[Stale]:
    """Lock the rows of versioned objects, and return those whose version is another one."""
    by_mapper: dict[Mapper[Any], list[State]] = {}
    for state in states:
        if state.mapper.version_id_col is not None and state.key is not None:
            by_mapper.setdefault(state.mapper, []).append(state)
    return [
        stale
        for mapper, some in by_mapper.items()
        for stale in _look(session, mapper, some, deleting=deleting)
    ]


def _look(
    session: Session, mapper: Mapper[Any], states: list[State], *, deleting: bool
) -> list[Stale]:
    token = token_attribute(mapper)
    assert token is not None and mapper.version_id_col is not None
    connection = session.connection(bind_arguments={"mapper": mapper})
    database_of(connection.dialect).begin_writing(connection, mapper.version_id_col.table)
    identities = [_identity(state) for state in states]
    versions = read_stored(connection, mapper, identities, only=(token,), deleting=deleting)
    moved = [
        state
        for state in states
        if (expected := _expected(state, token)) is None
        or versions.get(_identity(state), {}).get(token) != expected
    ]
    if not moved:
        return []
    identities = [_identity(state) for state in moved]
    stored = read_stored(connection, mapper, identities, deleting=deleting)
    return [
        Stale(
            state,
            state.obj(),
            connection,
            attempt_of(
                state,
                "delete" if state.obj() in session.deleted else "update",
                _expected(state, token),
            ),
            stored.get(_identity(state)),
            problem=_problem(mapper, state, token, stored),
        )
        for state in moved
    ]


def _problem(
    mapper: Mapper[Any], state: State, token: str, stored: Mapping[Any, Values]
) -> Exception | None:
    identity = _identity(state)
    if _expected(state, token) is None and identity in stored:
        return no_version(mapper, identity)
    return None


def _identity(state: State) -> tuple[Any, ...]:
    assert state.key is not None
    return tuple(state.key[1])


def _expected(state: State, token: str) -> Any:
    if token not in state.dict:
        history: Any = state.attrs[token].load_history()
        return history.unchanged[0]
    return state.committed_state.get(token, state.dict[token])
