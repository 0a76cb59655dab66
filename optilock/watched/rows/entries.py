"""Rows that missed, told as entries: what was read, what was wanted, what is stored.

:class:`Attempt` is our side of a conflict, taken from the object before SQLAlchemy finishes with
it; :func:`~optilock.watched.rows.stored.read_stored` is the other side, read with a lock, because a
plain read may still show the old row (MariaDB at REPEATABLE READ). :class:`Missed` has both, to the
end of the flush.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ClauseElement,
    Column,
    Connection,
    Table,
)
from sqlalchemy.orm import NO_VALUE, Mapper, RelationshipDirection, Session

from optilock.dialects import database_of
from optilock.errors import Action, Computed, Entry, NotWritten
from optilock.mapped import Identity, Place, State, facts, identity_of, is_expression
from optilock.mapping.compared import as_read, changed_names, compared_names
from optilock.resolvers.column_groups import as_one
from optilock.resolvers.resolution import Resolution
from optilock.serialize import ReadOnly, difference, plus
from optilock.watched.rows.seen import version_seen, younger_names
from optilock.watched.rows.stored import Values, read_stored
from optilock.watched.session.connections import connection_to_write

_IMMUTABLE = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    enum.Enum,
    frozenset,
)


@dataclass(frozen=True)
class Attempt:
    """Our side of a conflict."""

    mapper: Mapper[Any]
    identity: Identity
    action: Action
    #: What this session had loaded; an attribute that was set without being loaded is missing.
    original: Values
    current: Values
    changes: Values

    @property
    def place(self) -> Place:
        """The row, whatever class of the hierarchy it was read as."""
        return facts(self.mapper).root, self.identity


def attempt_of(
    state: State,
    action: Action,
    version: Any,
    *,
    expressions: Mapping[Column[Any], Any] | None = None,
    computed: Iterable[Column[Any]] = (),
) -> Attempt:
    """Our side, from the object. ``computed`` columns were filled in for us, not changed by us."""
    mapper, known = state.mapper, facts(state.mapper)
    token = known.token
    filled = known.named(computed)
    younger, edited = younger_names(state, version), changed_names(state)
    original: Values = {}
    current: Values = {}
    changes: Values = {}
    for name in known.columns:
        if name in filled and name not in state.committed_state:
            continue
        if name in state.dict:
            current[name] = detached(state.dict[name], name)
        before = as_read(state, name)
        if before is not NO_VALUE and name not in younger:
            original[name] = detached(before, name)
        if name in edited and name != token:
            changes[name] = current[name]
    for column in expressions or ():
        name = known.names[column]
        changes[name] = current[name] = Computed(name)
    if token:
        assigned = known.by_application and token in state.dict
        original[token] = version
        current[token] = detached(state.dict[token], token) if assigned else version
    identity = identity_of(state) if state.key else mapper.primary_key_from_instance(state.obj())
    return Attempt(mapper, tuple(identity), action, original, current, changes)


def _expressions_of(state: State) -> dict[Column[Any], Any]:
    """The SQL expressions among the values that are to be written, in any of the object's tables.

    To be asked before SQLAlchemy has sent them: then it takes them from the object.
    """
    columns, found = facts(state.mapper).columns, {}
    for name in state.committed_state:
        value: Any = state.dict.get(name)
        if name in columns and is_expression(value):
            clause = value if isinstance(value, ClauseElement) else value.__clause_element__()
            found[columns[name]] = clause
    return found


def detached(value: Any, name: str) -> Any:
    """The value itself, or a copy that later changes of the object do not reach."""
    if is_expression(value):
        return Computed(name)
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


def stored_or_loaded(session: Session, state: State, loaded: Values) -> Values:
    """The row as the session has loaded it; read, without a lock, if a column is missing there."""
    if loaded.keys() >= facts(state.mapper).columns.keys():
        return loaded
    identity = identity_of(state)
    connection = connection_to_write(session, state.mapper)
    return read_stored(connection, state.mapper, [identity], lock=False).get(identity, loaded)


def locked_table(mapper: Mapper[Any]) -> Table:
    """The table whose row stands for the whole: the version's, or the base."""
    return facts(mapper).table


def equal_to_stored(state: State, final: Values, uow: Any = None) -> None:
    """Give the object the stored values as its loaded ones; attributes never loaded stay so.

    ``refresh_flush`` tells mutable types and the application, as after a RETURNING.
    """
    names = facts(state.mapper).columns
    known = [
        name
        for name in names
        if name in final and (name in state.dict or name in state.committed_state)
    ]
    for name in known:
        state.dict[name] = final[name]
        state.committed_state.pop(name, None)
        state.expired_attributes.discard(name)
    for composite in state.mapper.composites:
        state.dict.pop(composite.key, None)
    if uow is not None:
        state.manager.dispatch.refresh_flush(state, uow, known)
    else:
        state.manager.dispatch.refresh(state, None, known)


def stale_relationships(state: State, final: Values) -> list[str]:
    """Relationships of the object whose foreign key is now another one than the object held."""
    names = {column: name for name, column in facts(state.mapper).columns.items()}
    return [
        relationship.key
        for relationship in state.mapper.relationships
        if relationship.direction is RelationshipDirection.MANYTOONE
        and relationship.key in state.dict
        and any(_differs(state, final, names, column) for column in relationship.local_columns)
    ]


def _differs(state: State, final: Values, names: dict[Column[Any], str], column: Any) -> bool:
    name = names.get(column)
    return name is not None and name in final and state.dict.get(name) != final[name]


def has_moved(attempt: Attempt, stored: Values | None) -> bool:
    """Is the row gone, in another version, or different in a value that is compared?"""
    if stored is None:
        return True
    token = facts(attempt.mapper).token
    return bool(_differ(attempt, stored, (token, *_compared_of(attempt))))


def _compared_of(attempt: Attempt) -> Collection[str]:
    deleting = attempt.action == "delete"
    return compared_names(attempt.mapper, changed=attempt.changes, deleting=deleting)


def _differ(attempt: Attempt, stored: Values, names: Iterable[str]) -> frozenset[str]:
    """The attributes of ``names`` that are stored with other values than were read."""
    same, original = facts(attempt.mapper).same, attempt.original
    return frozenset(
        name for name in names if name in original and not same(name, original[name], stored[name])
    )


def entry_of(attempt: Attempt, stored: Values | None, *, demanded: bool = False) -> Entry[Any]:
    """Both sides as one value, for reading: nobody changes the attempt any more.

    Was the attempt's version ``demanded``, and perhaps never read?
    """
    return Entry(
        model=attempt.mapper.class_,
        identity=attempt.identity,
        kind="deleted" if stored is None else "updated",
        action=attempt.action,
        original=ReadOnly(attempt.original),
        current=ReadOnly(attempt.current),
        database=None if stored is None else ReadOnly(stored),
        changes=ReadOnly(attempt.changes),
        conflicting=_conflicting(attempt, stored),
        token=facts(attempt.mapper).token or None,
        compared=_stored_otherwise(attempt, stored),
        added=_NONE if not facts(attempt.mapper).commuting else ReadOnly(_added(attempt)),
        demanded=demanded,
    )


_NOTHING: frozenset[str] = frozenset()
_NONE = ReadOnly({})


def _added(attempt: Attempt) -> Values:
    """By how much we change columns that writers add to, as far as it is known."""
    known, original = facts(attempt.mapper), attempt.original
    found = {
        name: difference(original[name], ours)
        for name, ours in attempt.changes.items()
        if name in original and known.columns.get(name) in known.commuting
    }
    return {name: more for name, more in found.items() if more is not None}


def sums_of(entry: Entry[Any], stored: Values) -> Values:
    """What we add to columns of a row, on top of what is stored."""
    found = {name: plus(stored[name], more) for name, more in entry.added.items()}
    return {name: total for name, total in found.items() if total is not None}


def _stored_otherwise(attempt: Attempt, stored: Values | None) -> frozenset[str]:
    """The compared attributes that differ, of a row of which perhaps not all was loaded."""
    if stored is None or not facts(attempt.mapper).compares:
        return _NOTHING
    return _differ(attempt, stored, stored.keys() & _compared_of(attempt))


def _conflicting(attempt: Attempt, stored: Values | None) -> frozenset[str]:
    """What both sides changed to different values, and what belongs together with it.

    Of an attribute that was set without having been loaded nobody can say that the other side
    left it alone, so it counts as changed by both. What both only add to is no conflict.
    """
    if stored is None:
        return _NOTHING
    known, original = facts(attempt.mapper), attempt.original
    added: Values = _added(attempt) if known.commuting else {}
    both = [
        name
        for name, ours in attempt.changes.items()
        if name in stored
        and known.columns[name] not in known.ignored
        and not (name in original and known.same(name, original[name], stored[name]))
        and (isinstance(ours, Computed) or not known.same(name, ours, stored[name]))
        and not (name in added and plus(stored[name], added[name]) is not None)
    ]
    if known.together and attempt.changes:
        both += as_one(known.together, attempt, stored, known.same)
    return frozenset(both) if both else _NOTHING


@dataclass(eq=False)
class Missed:
    """A row that a write, or a look before it, did not find as it was read.

    It is our attempt, what is stored instead, and what was decided about it.
    """

    state: State
    #: Held so that an object nobody else references lives until it is dirty again.
    obj: Any
    connection: Connection
    attempt: Attempt
    stored: Values | None = None
    #: Set where no resolver may settle the row (its version is NULL, a trigger keeps it).
    problem: Exception | None = None
    resolution: Resolution | None = None
    #: Settled while the flush was still running: others of the flush depend on the row.
    restored: bool = False
    #: The event of what was written in the end, and whether the listeners were called for it.
    written: str | None = None
    told: bool = False
    #: The version was to move, whatever else changes.
    touched: bool = False
    #: SQL expressions among our new values, in every table of the row.
    expressions: Mapping[Column[Any], Any] = field(init=False)

    def __post_init__(self) -> None:
        self.expressions = _expressions_of(self.state)

    @cached_property
    def entry(self) -> Entry[Any]:
        return entry_of(self.attempt, self.stored)

    @property
    def gone(self) -> bool:
        return self.stored is None


def not_written(missed: Missed) -> NotWritten | None:
    """The error of a row that is as it was read, and missed once more; ``None``: a conflict.

    Where no row can be locked, somebody may have moved it again.
    """
    return kept_by_database(missed.attempt, missed.connection)


def kept_by_database(attempt: Attempt, connection: Connection) -> NotWritten | None:
    """The same, of what was attempted by whatever way."""
    if not database_of(connection.dialect).locks_rows(connection.dialect):
        return None
    return NotWritten(
        f"{attempt.mapper.class_.__name__} {attempt.identity!r} could not be {attempt.action}d: the"
        " row is still as it was read, so nobody else was first. A trigger, a rule or a policy of"
        f" the database (row-level security) prevents the {attempt.action}: change that, or leave"
        " the row alone."
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
