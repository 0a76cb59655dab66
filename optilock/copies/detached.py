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

from sqlalchemy import Column
from sqlalchemy.orm import NO_VALUE, ColumnProperty, Mapper, Session
from sqlalchemy.orm.base import state_str

from optilock.errors import ConcurrencyError, Entry
from optilock.mapped import State, facts, identity_of
from optilock.mapping.compared import as_read, compared_names, values_are_unknown
from optilock.rows.seen import forget, version_seen
from optilock.rows.sides import attempt_of, entry_of, stored_or_loaded
from optilock.rows.stored import Values, read_stored
from optilock.rows.unknown_versions import may_be_undone, never_read
from optilock.session.connections import connection_to_write

_ADVICE = (
    " Nothing was merged. Read the row again and apply the edits to it, or show both versions to"
    " whoever made them."
)
#: SQLAlchemy's own advice would overwrite what the author of the copy has not seen.
_SQLALCHEMYS_ADVICE = " Leave the version attribute unset when merging"


def in_our_words(message: str) -> str:
    """What SQLAlchemy says of a stale copy, with advice that loses nobody's change."""
    said, its_advice, _ = message.partition(_SQLALCHEMYS_ADVICE)
    return said + _ADVICE if its_advice else message


def is_stale(source: State, merged: State) -> bool:
    """Is the copy in another version than the object that it is merged into, or were its values?"""
    if source is merged:
        return False
    if is_undone(source):
        return True
    token = facts(source.mapper).token
    if has_other_values(source, merged):
        return True
    if not token or facts(merged.mapper).token != token:
        return False
    seen, held = version_seen(source, token), version_seen(merged, token)
    if seen is None or held is None:
        return False
    return not facts(merged.mapper).same(token, seen, held)


def is_undone(source: State) -> bool:
    """Does the copy hold values of which nobody knows whether they ever were stored?"""
    if may_be_undone(source):
        return True
    token = facts(source.mapper).token
    if not token or not never_read(source) or source.dict.get(token) is not None:
        return False
    known = facts(source.mapper)
    return any(name in source.dict for name in known.columns if name not in known.keys)


def has_other_values(source: State, merged: State) -> bool:
    """Was a compared value of the copy read as another one than what is stored?"""
    known = facts(merged.mapper)
    names = compared_names(merged.mapper, changed=(), deleting=True)
    if values_are_unknown(source) and any(name in source.dict for name in names):
        return True
    for name in names:
        seen, stored = as_read(source, name), as_read(merged, name)
        if seen is NO_VALUE or stored is NO_VALUE:
            continue
        if not known.same(name, seen, stored):
            return True
    return False


def gone(source: State, version: Any) -> ConcurrencyError:
    """The error of a copy whose row was deleted."""
    return ConcurrencyError(
        [gone_entry(source, version)],
        f"Version id {version!r} on merged state {state_str(source)} does not match any row: the"
        " row was deleted after the copy was read. Nothing was merged. Drop the copy; or, if the"
        " row is to be there again, add a new object with its values.",
    )


def gone_entry(source: State, version: Any) -> Entry[Any]:
    """What the copy was, and what it is now; nothing is stored."""
    return entry_of(attempt_of(source, "update", version), None)


def moved(session: Session, source: State, merged: State) -> ConcurrencyError:
    """The error of a copy whose row is in another version than the session's object."""
    entry = moved_entry(session, source, merged)
    assert entry.token is not None
    held = version_seen(merged, entry.token)
    return ConcurrencyError(
        [entry],
        f"Version id {entry.original[entry.token]!r} on merged state {state_str(source)} does not"
        f" match existing version {held!r}: somebody else has changed the row after the copy was"
        " read." + _ADVICE,
    )


def undone(session: Session, source: State, merged: State) -> ConcurrencyError:
    """The error of a copy that holds what may never have been stored."""
    return ConcurrencyError(
        [moved_entry(session, source, merged)],
        f"Version id on merged state {state_str(source)} is not known: it holds what a transaction"
        " had written that was not committed, or had no outcome yet, and the row is another one"
        " now." + _ADVICE,
    )


def moved_entry(session: Session, source: State, merged: State) -> Entry[Any]:
    """What the copy was, what it is now, and what is stored."""
    token = facts(source.mapper).token
    attempt = attempt_of(source, "update", version_seen(source, token) if token else None)
    identity = identity_of(merged)
    connection = connection_to_write(session, merged.mapper)
    found = read_stored(connection, merged.mapper, [identity], lock=False)
    return entry_of(attempt, found.get(identity))


def stored_of(session: Session, merged: State) -> Values:
    """The row as the session has loaded it, or read if a column is missing."""
    token = facts(merged.mapper).token
    held = version_seen(merged, token) if token else None
    return stored_or_loaded(session, merged, attempt_of(merged, "update", held).original)


class _VersionProperty(ColumnProperty[Any]):
    """What ``session.merge`` does with the version: compare it, and write it nowhere.

    SQLAlchemy compares the versions before it merges, but only where both are loaded. Over an
    object that is expired it would write the old version, and the check would pass; and a row that
    is gone it would insert again.
    """

    __slots__ = ()
    inherit_cache = True

    def merge(
        self,
        session: Session,
        source_state: State,
        source_dict: Any,
        dest_state: State,
        dest_dict: Any,
        load: bool,
        _recursive: Any,
        _resolve_conflict_map: Any,
    ) -> None:
        seen = version_seen(source_state, self.key)
        if is_undone(source_state):
            if not load:
                return  # it must be read before it is edited
            if dest_state.key is not None:
                error = undone(session, source_state, dest_state)
                session.expire(dest_state.obj())  # other attributes may have been merged already
                raise error
        if self.key not in source_dict and seen is None:
            return
        if not load:
            dest_dict[self.key] = seen
            forget(dest_state)  # it came without a version
        elif dest_state.key is None:
            loaded = source_state.key is not None or self.key not in source_state.committed_state
            if seen is not None and loaded:
                session.expunge(dest_state.obj())
                raise gone(source_state, seen)
            dest_dict[self.key] = seen
        elif dest_state.get_impl(self.key).get(dest_state, dest_dict) != seen:
            error = moved(session, source_state, dest_state)
            session.expire(dest_state.obj())  # other attributes may have been merged already
            raise error
        elif source_state.key is not None and source_dict.get(self.key, seen) != seen:
            setattr(dest_state.obj(), self.key, source_dict[self.key])  # assigned to the copy


def compare_in_merge(mapper: Mapper[Any], column: Column[Any]) -> None:
    """``session.merge`` compares the version, whatever is loaded."""
    held = mapper.get_property_by_column(column)
    if type(held) is ColumnProperty:  # a joined child shares it with its parent
        held.__class__ = _VersionProperty
