"""Rows that missed, told as entries: what was read, what was wanted, what is stored.

:class:`Attempt` is our side of a conflict, taken from the object before SQLAlchemy finishes with
it; :func:`read_stored` is the other side, read with a lock, because a plain read may still show
the old row (MariaDB at REPEATABLE READ).
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Select, Table, select, tuple_
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.base import NO_VALUE
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.sql import ClauseElement

from optilock.dialects import database_of
from optilock.entry import Action, Computed, Entry
from optilock.originals import original_of
from optilock.versioned import ignored_columns, token_attribute

__all__ = ["Attempt", "attempt_of", "columns_of", "entry_of", "read_stored"]

Identity = tuple[Any, ...]
Values = dict[str, Any]

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


def columns_of(mapper: Mapper[Any]) -> dict[str, Column[Any]]:
    """Attribute -> column of the mapper's own tables (the nearest, where tables are joined)."""
    return {
        attribute.key: attribute.columns[0]
        for attribute in mapper.column_attrs
        if isinstance(attribute.columns[0], Column) and attribute.columns[0].table in mapper.tables
    }


def attempt_of(
    state: InstanceState[Any],
    action: Action,
    version: Any,
    *,
    expressions: Mapping[Column[Any], Any] | None = None,
    computed: Iterable[Column[Any]] = (),
) -> Attempt:
    """Our side, from the object. ``computed`` columns were filled in for us, not changed by us."""
    mapper = state.mapper
    token = token_attribute(mapper)
    names = columns_of(mapper)
    filled = {mapper.get_property_by_column(column).key for column in computed}
    original: Values = {}
    current: Values = {}
    changes: Values = {}
    for name in names:
        if name in filled and name not in state.committed_state:
            continue
        if name in state.dict:
            current[name] = detached(state.dict[name], name)
        before = state.committed_state.get(name, state.dict.get(name, NO_VALUE))
        if name in state.committed_state:
            before = original_of(state, name, before)
        if before is not NO_VALUE:
            original[name] = detached(before, name)
        edited = name in state.committed_state and name in state.dict and name != token
        if edited and not _equal(state, name, state.dict[name], before):
            changes[name] = current[name]
    for column in expressions or ():
        name = mapper.get_property_by_column(column).key
        changes[name] = current[name] = Computed(name)
    if token is not None:
        original[token] = current[token] = version
    identity = tuple(state.key[1]) if state.key else mapper.primary_key_from_instance(state.obj())
    return Attempt(mapper, tuple(identity), action, original, current, changes)


def _equal(state: InstanceState[Any], name: str, a: Any, b: Any) -> bool:
    if isinstance(a, ClauseElement) or hasattr(a, "__clause_element__"):
        return False
    return b is not NO_VALUE and same(columns_of(state.mapper)[name], a, b)


def same(column: Column[Any], a: Any, b: Any) -> bool:
    """Are two values of a column the same value?"""
    return bool(column.type.compare_values(a, b) is True)


def detached(value: Any, name: str) -> Any:
    """The value itself, or a copy that later changes of the object do not reach."""
    if isinstance(value, ClauseElement) or hasattr(value, "__clause_element__"):
        return Computed(name)
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


def read_stored(
    connection: Connection,
    mapper: Mapper[Any],
    identities: list[Identity],
    *,
    only: tuple[str, ...] = (),
    lock: bool = True,
    deleting: bool = False,
) -> dict[Identity, Values]:
    """What is stored now, every column (or ``only`` some), for those of the rows that exist."""
    names = columns_of(mapper)
    if only:
        names = {name: names[name] for name in only}
    keys: list[Any] = list(mapper.primary_key)
    database = database_of(connection.dialect)
    found: dict[Identity, Values] = {}
    query = select(*keys, *names.values()).select_from(mapper.persist_selectable)
    limit = database.max_parameters
    step = len(identities) if limit is None else max(1, limit // len(keys))
    for start in range(0, len(identities), step):
        some = _where(query, keys, identities[start : start + step])
        if lock:
            some = database.lock(some, _token_table(mapper), deleting=deleting)
        for row in type(connection).execute(connection, some):
            found[tuple(row[: len(keys)])] = dict(zip(names, row[len(keys) :], strict=True))
    return found


def _token_table(mapper: Mapper[Any]) -> Table:
    assert mapper.version_id_col is not None
    table = mapper.version_id_col.table
    assert isinstance(table, Table)
    return table


def _where(query: Select[Any], keys: list[Any], identities: list[Identity]) -> Select[Any]:
    if len(keys) == 1:
        return query.where(keys[0].in_([key for (key,) in identities])).order_by(*keys)
    return query.where(tuple_(*keys).in_(identities)).order_by(*keys)


def entry_of(attempt: Attempt, stored: Values | None) -> Entry[Any]:
    """Both sides as one value."""
    return Entry(
        model=attempt.mapper.class_,
        identity=attempt.identity,
        kind="deleted" if stored is None else "updated",
        action=attempt.action,
        original=attempt.original,
        current=attempt.current,
        database=stored,
        changes=attempt.changes,
        conflicting=_conflicting(attempt, stored),
        token=token_attribute(attempt.mapper),
    )


def _conflicting(attempt: Attempt, stored: Values | None) -> frozenset[str]:
    """What both sides changed to different values.

    Of an attribute that was set without having been loaded nobody can say that the other side
    left it alone, so it counts as changed by both.
    """
    if stored is None:
        return frozenset()
    names = columns_of(attempt.mapper)
    ignored = ignored_columns(attempt.mapper)
    return frozenset(
        name
        for name, ours in attempt.changes.items()
        if name in stored
        and names[name] not in ignored
        and not (
            name in attempt.original and same(names[name], attempt.original[name], stored[name])
        )
        and (isinstance(ours, Computed) or not same(names[name], ours, stored[name]))
    )
