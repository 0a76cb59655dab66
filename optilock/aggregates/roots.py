"""Whose child is it? The roots of one object that changed, before and after the change.

A child names its root in three ways: by the object that a many-to-one attribute holds, by the
foreign key column, and by being in the root's collection, which the root itself tells. All that can
be known without a query is; a root that is known by its key alone is read, with a lock, so that it
cannot have moved when its version is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    LoaderCallableStatus,
    Mapper,
    PassiveFlag,
    RelationshipDirection,
    RelationshipProperty,
    Session,
)
from sqlalchemy.orm.attributes import instance_state

from optilock.dialects import database_of
from optilock.mapped.facts import facts
from optilock.mapped.keys import State, identity_of
from optilock.rows.sides import read_stored
from optilock.session.connections import connection_to_write

__all__ = ["AS_FAR_AS_KNOWN", "find_roots"]

#: Column of the root -> value.
Values = dict[Any, Any]

#: What is in memory, appends to collections that were never loaded included.
AS_FAR_AS_KNOWN = PassiveFlag.PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS

#: All of them, as SQLAlchemy reads them for a delete: also where the application may not.
_ALL = PassiveFlag.PASSIVE_OFF | PassiveFlag.NO_RAISE


def find_roots(
    session: Session, state: State, root: Mapper[Any], relationship: RelationshipProperty[Any]
) -> Iterator[Any]:
    """The roots of ``state`` by ``relationship`` of ``root``, each as often as it is found.

    Objects, not their states: the session holds an unchanged object weakly."""
    if relationship.secondary is not None:
        yield from _linked(session, state, relationship)
        return
    held = list(_held(state, root, relationship))
    yield from held
    for values in _foreign_keys(session, state, relationship):
        if not any(_has_key(one, values) for one in held):
            found = _by_key(session, root, values)
            if found is not None:
                yield found


def _linked(
    session: Session, state: State, relationship: RelationshipProperty[Any]
) -> Iterator[Any]:
    """Roots whose link to this object comes or goes, told from this side."""
    for own in state.mapper.relationships:
        if own.secondary is relationship.secondary and own is not relationship:
            if state.obj() in session.deleted:  # all its links go; SQLAlchemy reads them as well
                history = state.get_history(own.key, _ALL)
                objects = history.non_added()
            else:
                history = state.get_history(own.key, AS_FAR_AS_KNOWN)
                objects = [*history.added, *history.deleted]
            yield from objects


def _held(
    state: State, root: Mapper[Any], relationship: RelationshipProperty[Any]
) -> Iterator[Any]:
    """Roots that many-to-one attributes of the same foreign key hold, or held."""
    for own in state.mapper.relationships:
        if (
            own.direction is RelationshipDirection.MANYTOONE
            and own.local_columns == relationship.remote_side
            and own.mapper.common_parent(root)
        ):
            history = state.get_history(own.key, AS_FAR_AS_KNOWN)
            for obj in (*history.added, *history.unchanged, *history.deleted):
                if obj is not None:
                    yield obj


def _foreign_keys(
    session: Session, state: State, relationship: RelationshipProperty[Any]
) -> Iterator[Values]:
    """Root's column -> value: as stored, and as it is to be."""
    pairs = [
        (parent, facts(state.mapper).names[child])
        for parent, child in relationship.local_remote_pairs or ()
    ]
    now = {parent: _value(state, name) for parent, name in pairs}
    before = {parent: state.committed_state.get(name, now[parent]) for parent, name in pairs}
    if state.key and any(_is_unknown(v) for v in (*now.values(), *before.values())):
        stored = _stored(session, state, pairs)
        now, before = ({**stored, **_known(values)} for values in (now, before))
    yield now
    if before != now:
        yield before


def _value(state: State, name: str) -> Any:
    """The attribute's value; one that a commit has expired is read, as the flush would."""
    try:
        return state.manager[name].impl.get(
            state,
            state.dict,
            PassiveFlag.PASSIVE_OFF if state.key else PassiveFlag.PASSIVE_NO_FETCH,
        )
    except InvalidRequestError:  # raiseload
        return LoaderCallableStatus.NO_VALUE


def _stored(session: Session, state: State, pairs: list[tuple[Any, str]]) -> Values:
    """What the row says: for what was left out of the load, or set without having been read."""
    connection = connection_to_write(session, state.mapper)
    identity = identity_of(state)
    names = tuple(dict.fromkeys(name for _, name in pairs))
    found = read_stored(connection, state.mapper, [identity], only=names, lock=False)
    row = found.get(identity)
    return {} if row is None else {parent: row[name] for parent, name in pairs}


def _known(values: Values) -> Values:
    return {parent: value for parent, value in values.items() if not _is_unknown(value)}


def _is_unknown(value: Any) -> bool:
    return isinstance(value, LoaderCallableStatus)


def _has_key(obj: Any, values: Values) -> bool:
    root = instance_state(obj)
    return all(
        root.dict.get(facts(root.mapper).names[column]) == value for column, value in values.items()
    )


def _by_key(session: Session, root: Mapper[Any], values: Values) -> Any:
    """The root in the session, or read now and locked; None where there is no such row."""
    if not values or any(value is None or _is_unknown(value) for value in values.values()):
        return None
    keys = tuple(root.primary_key)
    if set(values) == set(keys):
        identity = root.identity_key_from_primary_key(tuple(values[key] for key in keys))
        known = session.identity_map.get(identity)
        if known is not None:
            return known
    connection = connection_to_write(session, root)
    database = database_of(connection.dialect)
    table = facts(root).table
    database.begin_writing(connection, table)
    query = select(root.class_).where(*(column == value for column, value in values.items()))
    return session.scalars(database.lock(query, table, deleting=False)).first()
