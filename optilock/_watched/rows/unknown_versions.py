"""Rows in unknown versions: they must be read before they are edited.

An object that comes to the session without a version, by ``make_transient_to_detached()`` or a
pickle, was read in an unknown version. So was one that a query without the version has made: the
text of a ``from_statement()``. So was one that was read after an UPDATE statement that is rolled
back: it may hold a version that was never stored. A row that is older than its version column may
have no version at all, which is NULL: it is refused, and left as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakSet

from sqlalchemy import Column, Table
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts
from optilock._watched.rows.seen import (
    NEVER_READ,
    SEEN_VERSION,
    is_never_read,
    may_be_unread,
    version_seen,
)
from optilock.errors import ConfigurationError

#: An attribute of a session: its objects whose rows were never read, once there was one.
UNREAD_STATES = "_optilock_unread"
#: An attribute of a state: the version that such a copy had when it came to the session.
_HELD = "_optilock_held"
#: In the ``info`` of a copy that was made before a transaction had its outcome: the version that
#: was stored before the transaction wrote the row, or ``None``.
VERSION_BEFORE = "optilock_before"


def note_attached(session: Session, obj: Any) -> None:
    """Handle a detached object that was added to ``session``."""
    state: State = instance_state(obj)
    token = facts(state.mapper).token
    if not token:
        return
    if may_be_undone(state):
        held = state.dict.get(token)
        drop_version(state)
        state.__dict__[_HELD] = held
    if token not in state.dict and (SEEN_VERSION not in state.__dict__ or is_never_read(state)):
        note_unread(session, state)


def note_unread(session: Session, state: State) -> None:
    """Mark the row as unread: each flush of the session checks it until it was read."""
    state.__dict__[SEEN_VERSION] = NEVER_READ
    session.__dict__.setdefault(UNREAD_STATES, WeakSet()).add(state)


def unread_states(session: Session) -> Collection[State]:
    """Return objects of the session whose rows were never read."""
    waiting = session.__dict__.get(UNREAD_STATES)
    if not waiting:
        return ()
    found = [state for state in waiting if may_be_unread(state) and state.session is session]
    session.__dict__[UNREAD_STATES] = WeakSet(found)
    # merge(load=False) and a touch give it a version
    return [state for state in found if version_seen(state, facts(state.mapper).token) is None]


def hold_version(state: State, version: Any) -> None:
    """Hold ``version``: the transaction that had changed the row is undone."""
    token = facts(state.mapper).token
    if token not in state.dict:
        state.__dict__[SEEN_VERSION] = version
    elif token in state.committed_state:
        state.committed_state[token] = version
    else:
        state.dict[token] = version
    _outcome_is_known(state)


def drop_version(state: State) -> None:
    """Drop the version of the object, which is unknown: its row must be read before an edit."""
    token = facts(state.mapper).token
    if not token:
        return
    state.dict.pop(token, None)
    state.committed_state.pop(token, None)
    state.__dict__[SEEN_VERSION] = NEVER_READ
    _outcome_is_known(state)
    if state.session is not None and state.key is not None:
        note_unread(state.session, state)


def version_held_before(state: State) -> Any:
    """Return the version that a copy of unknown outcome had before its session, or ``None``."""
    return state.__dict__.get(_HELD)


def hold_found_version(state: State, version: Any) -> None:
    """Hold the version in which the row was found, with the values of the object."""
    state.dict[facts(state.mapper).token] = version
    state.__dict__.pop(SEEN_VERSION, None)
    state.__dict__.pop(_HELD, None)


def may_be_undone(state: State) -> bool:
    """Return whether the copy holds a row of a transaction with unknown outcome."""
    return VERSION_BEFORE in state.__dict__.get("info", ())


def _outcome_is_known(state: State) -> None:
    if may_be_undone(state):
        del state.info[VERSION_BEFORE]


# -- refusals --------------------------------------------------------------------------------------


def unknown_version_error(state: State, key: tuple[Any, ...]) -> ConfigurationError:
    """Return the error of an object whose version is NULL, or was never read."""
    reason = unseen_row_error if is_never_read(state) else missing_version_error
    return reason(state.mapper, key)


def missing_version_error(mapper: Mapper[Any], key: tuple[Any, ...]) -> ConfigurationError:
    """Return the error of a row without a version, with SQL to repair the table."""
    token = mapper.version_id_col
    assert isinstance(token, Column) and isinstance(token.table, Table)
    table, column = token.table.fullname, token.name
    return ConfigurationError(
        f"{mapper.class_.__name__} {key!r} has no version: {table}.{column} is NULL,"
        " probably because the row is older than the column."
        f" {_repair_advice(mapper, table, column)} Then declare the column NOT NULL."
    )


def unseen_row_error(
    mapper: Mapper[Any], key: tuple[Any, ...], what: str = "be written: it was changed"
) -> ConfigurationError:
    """Return the error of an object whose row was never read."""
    name = mapper.class_.__name__
    return ConfigurationError(
        f"{name} {key!r} cannot {what} without having been read since it came to the"
        " session without a version (also by a query whose text has no version column), or since"
        " its INSERT or an UPDATE statement was rolled"
        " back, so the changes of others that its author has seen are unknown. Read it first"
        " (session.get(),"
        " session.refresh()), or say which version was seen:"
        " sqlalchemy.orm.attributes.set_committed_value(obj, version attribute, value)."
    )


def _repair_advice(mapper: Mapper[Any], table: str, column: str) -> str:
    generator: Any = mapper.version_id_generator
    first = generator(None) if callable(generator) else None
    if type(first) is int:
        return (
            "Give every row a version, for example"
            f" UPDATE {table} SET {column} = {first} WHERE {column} IS NULL."
        )
    return f"Give every row of {table} whose {column} is NULL a version of its own."
