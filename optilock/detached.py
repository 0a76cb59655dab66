"""Copies that were edited outside of a session and come back by ``session.merge()``.

A copy that carries a version was read in that version. If its row is in another one, or gone, the
merge is a conflict: it would overwrite, or bring back, what somebody else has changed or deleted.
A copy without a version says nothing about what was seen, and is merged over the newest row, as
SQLAlchemy does. A copy that a commit has expired carries the version that was seen last.

Where values are compared (``CompareValues``) it is the values that were read which must still be
stored, all that the class compares: a merge writes all that the copy holds, changed or not.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.base import NO_VALUE, state_str
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import Attempt, Values, attempt_of, entry_of, stored_or_loaded
from optilock.entry import Entry
from optilock.errors import ConcurrencyError
from optilock.mapping.columns import columns_of, same
from optilock.mapping.compared import as_read, compared_names
from optilock.seen import version_seen
from optilock.versioned import token_attribute

__all__ = [
    "gone",
    "gone_entry",
    "has_other_values",
    "is_stale",
    "moved",
    "moved_entry",
    "stored_of",
]

State = InstanceState[Any]

_ADVICE = (
    " Read the row again and apply the edits to it, or show both versions to whoever made them."
)


def is_stale(source: State, merged: State) -> bool:
    """Is the copy in another version than the object that it is merged into, or were its values?"""
    if source is merged:
        return False
    token = token_attribute(source.mapper)
    if has_other_values(source, merged):
        return True
    if token is None or token_attribute(merged.mapper) != token:
        return False
    seen, held = version_seen(source, token), version_seen(merged, token)
    if seen is None or held is None:
        return False
    return not same(columns_of(merged.mapper)[token], seen, held)


def has_other_values(source: State, merged: State) -> bool:
    """Was a compared value of the copy read as another one than what is stored?"""
    columns = columns_of(merged.mapper)
    for name in compared_names(merged.mapper, changed=(), deleting=True):
        seen, stored = as_read(source, name), as_read(merged, name)
        if seen is NO_VALUE or stored is NO_VALUE:
            continue
        if not same(columns[name], seen, stored):
            return True
    return False


def gone(source: State, version: Any) -> ConcurrencyError:
    """The error of a copy whose row was deleted."""
    return ConcurrencyError(
        [gone_entry(source, version)],
        f"Version id {version!r} on merged state {state_str(source)} does not match any row: the"
        " row was deleted after the copy was read. Leave the version attribute unset when merging"
        " to insert it again.",
    )


def gone_entry(source: State, version: Any) -> Entry[Any]:
    """What the copy was, and what it is now; nothing is stored."""
    return entry_of(attempt_of(source, "update", version), None)


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
    attempt: Attempt = attempt_of(
        source, "update", None if token is None else version_seen(source, token)
    )
    return entry_of(attempt, stored_of(session, merged))


def stored_of(session: Session, merged: State) -> Values:
    """The row as the session has loaded it, or read if a column is missing."""
    token = token_attribute(merged.mapper)
    held = None if token is None else version_seen(merged, token)
    return stored_or_loaded(session, merged, attempt_of(merged, "update", held).original)
