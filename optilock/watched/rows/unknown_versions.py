"""Rows of whose version nobody knows: they must be read before they are edited.

An object that comes to the session without a version, by ``make_transient_to_detached()`` or a
pickle, was read by nobody who could say in which. So is one that was read after an UPDATE statement
which is rolled back: it may hold a version that never was. And a row that is older than its version
column may have none at all, which is NULL: it is refused, and left as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakSet

from sqlalchemy import Column, Table
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.errors import ConfigurationError
from optilock.mapped import State, facts
from optilock.watched.rows.seen import NEVER, SEEN, version_seen

#: An attribute of a session: its objects whose rows nobody has read, once there was one.
UNREAD = "_optilock_unread"
#: An attribute of a state: the version that such a copy had when it came to the session.
_HELD = "_optilock_held"
#: In the ``info`` of a copy that was made before a transaction had its outcome: the version that
#: was stored before the transaction wrote the row, or ``None``.
BEFORE = "optilock_before"


def attached(session: Session, obj: Any) -> None:
    """A detached object was added to ``session``."""
    state: State = instance_state(obj)
    token = facts(state.mapper).token
    if not token:
        return
    if may_be_undone(state):
        held = state.dict.get(token)
        hold_nothing(state)
        state.__dict__[_HELD] = held
    if token not in state.dict and (SEEN not in state.__dict__ or never_read(state)):
        note_unread(session, state)


def note_unread(session: Session, state: State) -> None:
    """Nobody has read the row: looked for by each flush of the session until somebody has."""
    state.__dict__[SEEN] = NEVER
    session.__dict__.setdefault(UNREAD, WeakSet()).add(state)


def unread(session: Session) -> Collection[State]:
    """Objects of the session whose rows nobody has read."""
    waiting = session.__dict__.get(UNREAD)
    if not waiting:
        return ()
    found = [state for state in waiting if _is_unread(state) and state.session is session]
    session.__dict__[UNREAD] = WeakSet(found)
    return found


def _is_unread(state: State) -> bool:
    """``merge(load=False)`` gives a version past all events; a touch gives the one that follows."""
    token = facts(state.mapper).token
    return bool(token) and never_read(state) and version_seen(state, token) is None


def never_read(state: State) -> bool:
    """Was the object edited without anybody having read its row?"""
    return state.__dict__.get(SEEN) is NEVER


def hold(state: State, version: Any) -> None:
    """The row is in ``version``: what a transaction had made of it is undone."""
    token = facts(state.mapper).token
    if token not in state.dict:
        state.__dict__[SEEN] = version
    elif token in state.committed_state:
        state.committed_state[token] = version
    else:
        state.dict[token] = version
    _outcome_is_known(state)


def hold_nothing(state: State) -> None:
    """Nobody knows the version of what the object holds: its row must be read before an edit."""
    token = facts(state.mapper).token
    if not token:
        return
    state.dict.pop(token, None)
    state.committed_state.pop(token, None)
    state.__dict__[SEEN] = NEVER
    _outcome_is_known(state)
    if state.session is not None and state.key is not None:
        note_unread(state.session, state)


def held_before(state: State) -> Any:
    """The version that a copy of unknown outcome had when it came to its session, or ``None``."""
    return state.__dict__.get(_HELD)


def hold_known(state: State, version: Any) -> None:
    """The row was found as the object holds it, in that version."""
    state.dict[facts(state.mapper).token] = version
    state.__dict__.pop(SEEN, None)
    state.__dict__.pop(_HELD, None)


def may_be_undone(state: State) -> bool:
    """Was the copy made of a row that a transaction had written, whose outcome it cannot know?"""
    return BEFORE in state.__dict__.get("info", ())


def _outcome_is_known(state: State) -> None:
    if may_be_undone(state):
        del state.info[BEFORE]


# -- what is refused ------------------------------------------------------------------------------


def no_version(mapper: Mapper[Any], key: tuple[Any, ...]) -> ConfigurationError:
    """What is wrong with the row, and how to repair the table."""
    token = mapper.version_id_col
    assert isinstance(token, Column) and isinstance(token.table, Table)
    table, column = token.table.fullname, token.name
    return ConfigurationError(
        f"{mapper.class_.__name__} {key!r} has no version: {table}.{column} is NULL,"
        f" probably because the row is older than the column. {_repair(mapper, table, column)}"
        " Then declare the column NOT NULL."
    )


def never_seen(
    mapper: Mapper[Any], key: tuple[Any, ...], what: str = "be written: it was changed"
) -> ConfigurationError:
    """An object that stands for a row which nobody has read."""
    name = mapper.class_.__name__
    return ConfigurationError(
        f"{name} {key!r} cannot {what} without having been read since it came to the"
        " session without a version, or since its INSERT or an UPDATE statement was rolled"
        " back, so nobody knows which changes of others its author has seen. Read it first"
        " (session.get(),"
        " session.refresh()), or say which version was seen:"
        " sqlalchemy.orm.attributes.set_committed_value(obj, version attribute, value)."
    )


def _repair(mapper: Mapper[Any], table: str, column: str) -> str:
    generator: Any = mapper.version_id_generator
    first = generator(None) if callable(generator) else None
    if type(first) is int:
        return (
            "Give every row a version, for example"
            f" UPDATE {table} SET {column} = {first} WHERE {column} IS NULL."
        )
    return f"Give every row of {table} whose {column} is NULL a version of its own."
