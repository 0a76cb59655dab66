"""The roots of aggregates that a changed object belongs to, now and before.

A child names its root in three ways: by the object that a many-to-one attribute holds, by the
foreign key column, and by being in the root's collection, which the root itself names
(:mod:`optilock.watched.aggregates`). All roots that can be known without a query are known so.
:data:`READING` reads the others for a flush, with a lock, so that a root cannot have moved when
its version is written. :class:`InMemory` reads nothing and notes what it did not find.
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
from optilock.dialects.rows import ask_with_hint
from optilock.mapped import State, facts, identity_of
from optilock.watched.rows.stored import read_stored
from optilock.watched.session.connections import connection_to_write

#: Column of the root -> value.
Values = dict[Any, Any]

#: What is in memory, appends to collections that were never loaded included.
LOADED_OR_PENDING = PassiveFlag.PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS

#: All of them, as SQLAlchemy reads them for a delete: also where the application may not.
_ALL = PassiveFlag.PASSIVE_OFF | PassiveFlag.NO_RAISE


class Reading:
    """Read values and roots that are not in memory."""

    def value(self, state: State, name: str) -> Any:
        """Return the attribute's value; an expired one is read, as the flush would do."""
        passive = PassiveFlag.PASSIVE_OFF if state.key else PassiveFlag.PASSIVE_NO_FETCH
        return state.manager[name].impl.get(state, state.dict, passive)

    def links(self, state: State, name: str) -> Iterator[Any]:
        """Yield the objects that a deleted object is linked to; SQLAlchemy reads them as well."""
        yield from state.get_history(name, _ALL).non_added()

    def stored(self, session: Session, state: State, pairs: list[tuple[Any, str]]) -> Values:
        """Return the stored values of attributes that were not loaded."""
        connection = connection_to_write(session, state.mapper)
        identity = identity_of(state)
        names = tuple(dict.fromkeys(name for _, name in pairs))
        found = read_stored(connection, state.mapper, [identity], only=names, lock=False)
        row = found.get(identity)
        return {} if row is None else {parent: row[name] for parent, name in pairs}

    def root(self, session: Session, root: Mapper[Any], values: Values) -> Any:
        """Return the stored root with these values, locked; ``None`` if there is no such row."""
        connection = connection_to_write(session, root)
        database = database_of(connection.dialect)
        table = facts(root).table
        database.begin_writing(connection, table)
        query = select(root.class_).where(*(column == value for column, value in values.items()))
        found: Any = ask_with_hint(
            database, table, lambda: session.scalars(database.lock(query, table, deleting=False))
        )
        return found.first()


class InMemory(Reading):
    """Read nothing, and note where something would have to be read."""

    def __init__(self) -> None:
        #: A foreign key or a collection of links was not loaded.
        self.missed = False
        #: Classes of roots that the session does not hold.
        self.absent: set[Mapper[Any]] = set()

    def value(self, state: State, name: str) -> Any:
        return state.manager[name].impl.get(state, state.dict, PassiveFlag.PASSIVE_NO_INITIALIZE)

    def links(self, state: State, name: str) -> Iterator[Any]:
        self.missed |= name not in state.dict
        yield from state.get_history(name, LOADED_OR_PENDING).non_added()

    def stored(self, session: Session, state: State, pairs: list[tuple[Any, str]]) -> Values:
        self.missed = True
        return {}

    def root(self, session: Session, root: Mapper[Any], values: Values) -> Any:
        for one in session.identity_map.values():
            if isinstance(one, root.class_) and _has_key(one, values):
                return one
        self.absent.add(root)
        return None


READING = Reading()


def find_roots(
    session: Session,
    state: State,
    root: Mapper[Any],
    relationship: RelationshipProperty[Any],
    look: Reading = READING,
) -> Iterator[Any]:
    """Yield the roots of ``state`` by ``relationship`` of ``root``; one may come more than once.

    Objects, not their states: the session holds an unchanged object weakly."""
    if relationship.secondary is not None:
        yield from _linked(session, state, relationship, look)
        return
    held = list(_held(state, root, relationship))
    yield from held
    for values in _foreign_keys(session, state, relationship, look):
        if not any(_has_key(one, values) for one in held):
            found = _by_key(session, root, values, look)
            if found is not None:
                yield found


def _linked(
    session: Session, state: State, relationship: RelationshipProperty[Any], look: Reading
) -> Iterator[Any]:
    """Yield roots whose link to this object is added or removed on this side."""
    for own in state.mapper.relationships:
        if own.secondary is relationship.secondary and own is not relationship:
            if state.obj() in session.deleted:  # all its links go
                yield from look.links(state, own.key)
            else:
                history = state.get_history(own.key, LOADED_OR_PENDING)
                yield from (*history.added, *history.deleted)


def _held(
    state: State, root: Mapper[Any], relationship: RelationshipProperty[Any]
) -> Iterator[Any]:
    """Yield roots that many-to-one attributes of the same foreign key hold, or held."""
    for own in state.mapper.relationships:
        if (
            own.direction is RelationshipDirection.MANYTOONE
            and own.local_columns == relationship.remote_side
            and own.mapper.common_parent(root)
        ):
            history = state.get_history(own.key, LOADED_OR_PENDING)
            for obj in (*history.added, *history.unchanged, *history.deleted):
                if obj is not None:
                    yield obj


def _foreign_keys(
    session: Session, state: State, relationship: RelationshipProperty[Any], look: Reading
) -> Iterator[Values]:
    """Yield the root's key (column -> value) as it is to be, and as stored if that differs."""
    pairs = [
        (parent, facts(state.mapper).names[child])
        for parent, child in relationship.local_remote_pairs or ()
    ]
    now = {parent: _value(state, name, look) for parent, name in pairs}
    before = {parent: state.committed_state.get(name, now[parent]) for parent, name in pairs}
    if state.key and any(_is_unknown(v) for v in (*now.values(), *before.values())):
        stored = look.stored(session, state, pairs)
        now, before = ({**stored, **_known(values)} for values in (now, before))
    yield now
    if before != now:
        yield before


def _value(state: State, name: str, look: Reading) -> Any:
    try:
        return look.value(state, name)
    except InvalidRequestError:  # raiseload
        return LoaderCallableStatus.NO_VALUE


def _known(values: Values) -> Values:
    return {parent: value for parent, value in values.items() if not _is_unknown(value)}


def _is_unknown(value: Any) -> bool:
    return isinstance(value, LoaderCallableStatus)


def _has_key(obj: Any, values: Values) -> bool:
    root = instance_state(obj)
    return all(
        root.dict.get(facts(root.mapper).names[column]) == value for column, value in values.items()
    )


def _by_key(session: Session, root: Mapper[Any], values: Values, look: Reading) -> Any:
    """Return the root in the session, or look for it; ``None`` if there is no such row."""
    if not values or any(value is None or _is_unknown(value) for value in values.values()):
        return None
    keys = tuple(root.primary_key)
    if set(values) == set(keys):
        identity = root.identity_key_from_primary_key(tuple(values[key] for key in keys))
        known = session.identity_map.get(identity)
        if known is not None:
            return known
    return look.root(session, root, values)
