"""Rows that missed, as entries: the values that were read, wanted, and stored.

:class:`Attempt` is our side of a conflict, taken from the object before SQLAlchemy finishes with
it; :func:`~optilock._watched.rows.stored.read_stored` is the other side, read with a lock, because
a plain read may still show the old row (MariaDB at REPEATABLE READ). :class:`Missed` has both, to
the end of the flush.
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
)
from sqlalchemy.orm import Mapper, RelationshipDirection, Session

from optilock._mapped import Facts, Identity, Place, State, facts, identity_of
from optilock._mapping.original_values import all_as_read, changed_names, compared_names
from optilock._watched.rows.seen import version_seen, younger_names
from optilock._watched.rows.stored import Values, read_stored
from optilock._watched.session.connections import connection_to_write
from optilock.dialects import database_of
from optilock.dialects.rows import not_written
from optilock.errors import Action, Computed, Entry, OptilockError
from optilock.resolvers.column_groups import conflicting_together
from optilock.resolvers.resolution import Resolution
from optilock.serialize import PLAIN, ReadOnly, difference, exact_sum, is_expression

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

    @cached_property
    def known(self) -> Facts:
        return facts(self.mapper)

    @property
    def place(self) -> Place:
        """Return the row, independent of the class of the hierarchy as which it was read."""
        return self.known.root, self.identity


def attempt_of(
    state: State,
    action: Action,
    version: Any,
    *,
    expressions: Mapping[Column[Any], Any] | None = None,
    computed: Collection[Column[Any]] = (),
) -> Attempt:
    """Return our side, from the object. ``computed`` columns were filled in, not changed by us."""
    mapper, class_facts = state.mapper, facts(state.mapper)
    filled = class_facts.named(computed) if computed else ()
    original, current, changes = _sides_of(class_facts, state, version, filled)
    for column in expressions or ():
        name = class_facts.names[column]
        changes[name] = current[name] = Computed(name)
    token = class_facts.token
    if token:
        assigned = class_facts.by_application and token in state.dict
        original[token] = version
        current[token] = detached_copy(state.dict[token], token) if assigned else version
    identity = identity_of(state) if state.key else mapper.primary_key_from_instance(state.obj())
    return Attempt(mapper, tuple(identity), action, original, current, changes)


def side_as_read(state: State, version: Any) -> Values:
    """Return the original values of our side alone, with the version."""
    class_facts = facts(state.mapper)
    original, _, _ = _sides_of(class_facts, state, version, ())
    return {**original, class_facts.token: version} if class_facts.token else original


def _sides_of(
    class_facts: Facts, state: State, version: Any, filled: Collection[str]
) -> tuple[Values, Values, Values]:
    """Return the original values, the current ones and the changed ones of an object."""
    younger, edited = younger_names(state, version), changed_names(state)
    original: Values = {}
    current: Values = {}
    changes: Values = {}
    held, before = state.dict, all_as_read(state, class_facts.columns)
    for name in class_facts.columns:
        if name in filled and name not in state.committed_state:
            continue
        if name in held:
            value = held[name]
            current[name] = value if type(value) in PLAIN else detached_copy(value, name)
        if name in before and name not in younger:
            value = before[name]
            original[name] = value if type(value) in PLAIN else detached_copy(value, name)
        if name in edited and name != class_facts.token:
            changes[name] = current[name]
    return original, current, changes


def _expressions_of(state: State, columns: Mapping[str, Any]) -> dict[Column[Any], Any]:
    """Return the SQL expressions among the values to write, in any of the object's tables.

    Call it before SQLAlchemy has sent them: then it takes them from the object.
    """
    found: dict[Column[Any], Any] = {}
    for name in state.committed_state:
        value: Any = state.dict.get(name)
        if name in columns and is_expression(value):
            clause = value if isinstance(value, ClauseElement) else value.__clause_element__()
            found[columns[name]] = clause
    return found


def detached_copy(value: Any, name: str) -> Any:
    """Return the value itself, or a copy that later changes of the object do not reach."""
    if type(value) in PLAIN:  # nearly always
        return value
    if is_expression(value):
        return Computed(name)
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


def loaded_or_stored_values(session: Session, state: State, loaded: Values) -> Values:
    """Return the row as the session has loaded it; read, without a lock, if a column is missing."""
    if loaded.keys() >= facts(state.mapper).columns.keys():
        return loaded
    identity = identity_of(state)
    connection = connection_to_write(session, state.mapper)
    return read_stored(connection, state.mapper, [identity], lock=False).get(identity, loaded)


def equal_to_stored(state: State, final: Values, uow: Any = None) -> None:
    """Give the object the stored values as its loaded ones; attributes never loaded stay so.

    ``refresh_flush`` informs mutable types and the application, as after a RETURNING.
    """
    names, values, before = facts(state.mapper).columns, state.dict, state.committed_state
    held = [name for name in names if name in final and (name in values or name in before)]
    for name in held:
        values[name] = final[name]
        before.pop(name, None)
        state.expired_attributes.discard(name)
    for composite in state.mapper.composites:
        state.dict.pop(composite.key, None)
    if uow is not None:
        state.manager.dispatch.refresh_flush(state, uow, held)
    else:
        state.manager.dispatch.refresh(state, None, held)


def stale_relationships(state: State, final: Values) -> list[str]:
    """Return the relationships whose foreign key differs from the one that the object held."""
    if not state.mapper.relationships:
        return []
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
    """Return whether the row is gone, in another version, or different in a compared value."""
    if stored is None:
        return True
    return bool(_differ(attempt, stored, (attempt.known.token, *_compared_of(attempt))))


def _compared_of(attempt: Attempt) -> Collection[str]:
    deleting = attempt.action == "delete"
    return compared_names(attempt.mapper, changed=attempt.changes, deleting=deleting)


def _differ(attempt: Attempt, stored: Values, names: Iterable[str]) -> frozenset[str]:
    """Return the attributes of ``names`` whose stored values differ from those that were read."""
    same, original = attempt.known.same, attempt.original
    return frozenset(
        name for name in names if name in original and not same(name, original[name], stored[name])
    )


class HiddenRows:
    """Whether missing rows of a class may be hidden by row-level security: asked once a class."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[Mapper[Any], bool] = {}

    def of(self, mapper: Mapper[Any]) -> bool:
        """Return whether a policy is active for one of the tables of the class."""
        if mapper not in self._known:
            database = database_of(self._connection.dialect)
            self._known[mapper] = database.locks.may_hide_rows(self._connection, mapper.tables)
        return self._known[mapper]


def entry_of(
    attempt: Attempt,
    stored: Values | None,
    *,
    demanded: bool = False,
    hidden: HiddenRows | None = None,
) -> Entry[Any]:
    """Return both sides as one read-only value. The attempt does not change any more.

    ``demanded``: the caller named the attempt's version, and may not have read it. ``hidden``:
    asked if the row is missing.
    """
    known = attempt.known
    added = _added(attempt) if known.commuting else {}
    return Entry(
        model=attempt.mapper.class_,
        identity=attempt.identity,
        kind="deleted" if stored is None else "updated",
        action=attempt.action,
        original=ReadOnly(attempt.original),
        current=ReadOnly(attempt.current),
        database=None if stored is None else ReadOnly(stored),
        changes=ReadOnly(attempt.changes),
        conflicting=_NOTHING if stored is None else _conflicting(attempt, stored, added),
        token=known.token or None,
        compared=_stored_otherwise(attempt, stored),
        added=ReadOnly(added) if added else _NONE,
        demanded=demanded,
        table=known.name,
        maybe_hidden=stored is None and hidden is not None and hidden.of(attempt.mapper),
    )


_NOTHING: frozenset[str] = frozenset()
_NONE = ReadOnly({})


def _added(attempt: Attempt) -> Values:
    """Return the differences that we add to columns, as far as they are known."""
    columns, commuting, original = attempt.known.columns, attempt.known.commuting, attempt.original
    found = {
        name: difference(original[name], ours)
        for name, ours in attempt.changes.items()
        if name in original and columns.get(name) in commuting
    }
    return {name: more for name, more in found.items() if more is not None}


def sums_of(entry: Entry[Any], stored: Values) -> Values:
    """Return the stored values of a row with our differences added."""
    found = {name: exact_sum(stored[name], more) for name, more in entry.added.items()}
    return {name: total for name, total in found.items() if total is not None}


def _stored_otherwise(attempt: Attempt, stored: Values | None) -> frozenset[str]:
    """Return the compared attributes that differ, of a row that may be loaded in part."""
    if stored is None or not attempt.known.compares:
        return _NOTHING
    return _differ(attempt, stored, stored.keys() & _compared_of(attempt))


def _conflicting(attempt: Attempt, stored: Values, added: Values) -> frozenset[str]:
    """Return the columns that both sides changed to different values, and their groups.

    A column that was set without having been loaded counts as changed by both sides: its original
    is unknown. A column to which both sides only add is no conflict, and neither is the author
    or the time of the last change: each writer sets them.
    """
    class_facts = attempt.known
    ignored = class_facts.ignored
    both = [
        name
        for name, ours in attempt.changes.items()
        if name in stored
        and name not in class_facts.last_change
        and class_facts.columns[name] not in ignored
        and _is_changed_by_both(attempt, name, ours, stored[name])
        and not (name in added and exact_sum(stored[name], added[name]) is not None)
    ]
    if class_facts.together and attempt.changes:
        both += conflicting_together(class_facts.together, attempt, stored, class_facts.same)
    return frozenset(both) if both else _NOTHING


def _is_changed_by_both(attempt: Attempt, name: str, ours: Any, theirs: Any) -> bool:
    same, original = attempt.known.same, attempt.original
    if name in original and same(name, original[name], theirs):
        return False
    return isinstance(ours, Computed) or not same(name, ours, theirs)


#: The events of rows that were written.
AFTER_INSERT, AFTER_UPDATE, AFTER_DELETE = "after_insert", "after_update", "after_delete"


@dataclass(eq=False, slots=True)
class Missed:
    """A row that a write, or a read before it, did not find as it was read.

    It has our attempt, the stored row, and the decision about it.
    """

    state: State
    #: Held so that an unreferenced object lives until it is dirty again.
    obj: Any
    connection: Connection
    attempt: Attempt
    stored: Values | None = None
    #: Those of several missed rows, which ask once.
    hidden: HiddenRows | None = None
    #: Set where no resolver may settle the row (its version is NULL, a trigger keeps it).
    problem: Exception | None = None
    resolution: Resolution | None = None
    #: Settled while the flush was still running: others of the flush depend on the row.
    restored: bool = False
    #: The event of the final write, and whether the listeners were called for it.
    written: str | None = None
    told: bool = False
    #: The row as it is stored then, without values that SQL computes.
    after: Values | None = None
    #: The version was to move, even without another change.
    touched: bool = False
    #: SQL expressions among our new values, in every table of the row.
    expressions: Mapping[Column[Any], Any] = field(init=False)
    gone: bool = field(init=False)
    entry: Entry[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.expressions = _expressions_of(self.state, self.attempt.known.columns)
        self.gone = self.stored is None
        self.set_attempt(self.attempt)

    def set_attempt(self, attempt: Attempt) -> None:
        """Replace our side, and with it the entry."""
        hidden = self.hidden or HiddenRows(self.connection)
        self.attempt, self.entry = attempt, entry_of(attempt, self.stored, hidden=hidden)


def error_if_not_written(missed: Missed) -> OptilockError | None:
    """Return the error of a row that is as it was read, and missed once more; ``None``: a conflict.

    Where no row can be locked, another transaction may have moved it again.
    """
    return error_if_kept_by_database(missed.attempt, missed.connection)


def error_if_kept_by_database(attempt: Attempt, connection: Connection) -> OptilockError | None:
    """Return the same error for any attempt."""
    if not database_of(connection.dialect).locks.locks_rows(connection.dialect):
        return None
    return not_written(
        connection,
        f"{attempt.mapper.class_.__name__} {attempt.identity!r} could not be {attempt.action}d: the"
        " row is still as it was read, so this is no conflict.",
        attempt.action,
    )


def moved_entry(session: Session, source: State, merged: State) -> Entry[Any]:
    """Return an entry with the copy as it was read, as it is now, and with the stored row."""
    token = facts(source.mapper).token
    attempt = attempt_of(source, "update", version_seen(source, token) if token else None)
    identity = identity_of(merged)
    connection = connection_to_write(session, merged.mapper)
    found = read_stored(connection, merged.mapper, [identity], lock=False)
    return entry_of(attempt, found.get(identity))


def stored_of(session: Session, merged: State) -> Values:
    """Return the row as the session has loaded it, or read if a column is missing."""
    token = facts(merged.mapper).token
    held = version_seen(merged, token) if token else None
    return loaded_or_stored_values(session, merged, side_as_read(merged, held))
