"""Copies that were edited outside of a session and come back by ``session.merge()``.

A copy that carries a version was read in that version. If its row is in another one, or gone, the
merge is a conflict: it would overwrite, or bring back, what somebody else has changed or deleted.
A copy without a version says nothing about what was seen, and is merged over the newest row, as
SQLAlchemy does. A copy that a commit has expired carries the version that was seen last.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import Session
from sqlalchemy.orm.base import state_str
from sqlalchemy.orm.state import InstanceState

from optilock.columns import columns_of, same
from optilock.conflicts import Attempt, Values, attempt_of, entry_of, read_stored
from optilock.entry import Entry
from optilock.errors import ConcurrencyError
from optilock.seen import version_seen
from optilock.versioned import token_attribute

__all__ = ["gone", "is_stale", "moved", "moved_entry"]

State = InstanceState[Any]

_ADVICE = (
    " Read the row again and apply the edits to it, or show both versions to whoever made them."
)


def is_stale(source: State, merged: State) -> bool:
    """Is the copy in another version than the object that it is merged into?"""
    token = token_attribute(source.mapper)
    if token is None or source is merged or token_attribute(merged.mapper) != token:
        return False
    seen, held = version_seen(source, token), version_seen(merged, token)
    if seen is None or held is None:
        return False
    return not same(columns_of(merged.mapper)[token], seen, held)


def gone(source: State, version: Any) -> ConcurrencyError:
    """The error of a copy whose row was deleted."""
    attempt = attempt_of(source, "update", version)
    return ConcurrencyError(
        [entry_of(attempt, None)],
        f"Version id {version!r} on merged state {state_str(source)} does not match any row: the"
        " row was deleted after the copy was read. Leave the version attribute unset when merging"
        " to insert it again.",
    )


def moved(session: Session, source: State, merged: State) -> ConcurrencyError:
    """The error of a copy whose row is in another version."""
    entry = moved_entry(session, source, merged)
    assert entry.token is not None and entry.database is not None
    return ConcurrencyError(
        [entry],
        f"Version id {entry.original[entry.token]!r} on merged state {state_str(source)} does not"
        f" match existing version {entry.database[entry.token]!r}. Leave the version attribute"
        " unset when merging to update the most recent version." + _ADVICE,
    )


def moved_entry(session: Session, source: State, merged: State) -> Entry[Any]:
    """What the copy was, what it is now, and what is stored."""
    token = token_attribute(source.mapper)
    assert token is not None
    attempt: Attempt = attempt_of(source, "update", version_seen(source, token))
    held = version_seen(merged, token)
    return entry_of(attempt, _stored(session, merged, attempt_of(merged, "update", held).original))


def _stored(session: Session, merged: State, loaded: Values) -> Values:
    """The row as the session has loaded it, or read if a column is missing."""
    columns: dict[str, Column[Any]] = columns_of(merged.mapper)
    if loaded.keys() >= columns.keys():
        return loaded
    assert merged.key is not None
    identity = tuple(merged.key[1])
    connection = session.connection(bind_arguments={"mapper": merged.mapper})
    found = read_stored(connection, merged.mapper, [identity], lock=False)
    return found.get(identity, loaded)
