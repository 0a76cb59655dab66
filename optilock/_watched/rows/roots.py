"""The roots of aggregates that a changed object belongs to, now and before.

A child names its root in three ways: by the object that a many-to-one attribute holds, by the
foreign key column, and by being in the root's collection, which the root itself names
(:mod:`optilock._watched.aggregates`). All roots that can be known without a query are known so.
The others are read with a lock, so that a root cannot have moved when its version is written.
:class:`Together` reads them for a flush, in the order of all locks, with one statement a table.
:class:`InMemory` reads nothing and notes what it did not find.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    LoaderCallableStatus,
    Mapper,
    PassiveFlag,
    RelationshipDirection,
    RelationshipProperty,
    Session,
    UOWTransaction,
)
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import Identity, State, all_mappers, facts, identity_of
from optilock._undocumented.mappers import mappers_meant
from optilock._watched.rows.in_order import in_order
from optilock._watched.rows.stored import read_stored, rows_at
from optilock._watched.session.connections import connection_to_write
from optilock.dialects import database_of
from optilock.dialects.rows import lock_in_turn

#: Column of the root -> value.
Values = dict[Any, Any]


@dataclass(frozen=True, eq=False)
class Cover:
    """One relationship whose rows count as part of its root."""

    root: Mapper[Any]
    relationship: RelationshipProperty[Any]

    @property
    def by_links(self) -> bool:
        return self.relationship.secondary is not None

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """The columns of the root, and those of a part with the same values."""
        return list(() if self.by_links else self.relationship.local_remote_pairs or ())


declared_covers: list[Cover] = []
#: Those that an object of a class may belong to, and those that it is the root of.
covers_by_class: WeakKeyDictionary[Mapper[Any], tuple[list[Cover], list[Cover]]] = (
    WeakKeyDictionary()
)


def covers_of(mapper: Mapper[Any]) -> tuple[list[Cover], list[Cover]]:
    """Return the covers with the class as a child, and those with it as the root."""
    found = covers_by_class.get(mapper)
    if found is None:
        for root in all_mappers():
            if not root.configured and _may_cover(root, mapper):
                root.registry.configure(cascade=True)  # nothing that is used refers to it
        found = covers_by_class[mapper] = (
            [one for one in declared_covers if mapper.isa(one.relationship.mapper)],
            [one for one in declared_covers if mapper.isa(one.root)],
        )
    return found


def _may_cover(root: Mapper[Any], part: Mapper[Any]) -> bool:
    """Return whether a class that is not configured declares that it covers rows of ``part``.

    A relationship that it does not have yet is made by a class of its parts, once that is
    configured, as ``part`` is.
    """
    for name in getattr(root.class_, "__version_root_of__", ()):
        relationship = getattr(getattr(root.class_, name, None), "prop", None)
        if any(part.isa(one) for one in mappers_meant(root, getattr(relationship, "argument", ()))):
            return True
    return False


def foreign_keys_of(mapper: Mapper[Any]) -> Collection[str] | None:
    """Return the attributes by which rows of the class are parts; ``None``: they are none."""
    pairs = [pair for one in covers_of(mapper)[0] for pair in one.pairs]
    return tuple(dict.fromkeys(facts(mapper).names[child] for _, child in pairs)) or None


def key_of_root(mapper: Mapper[Any], cover: Cover, row: Mapping[str, Any]) -> Values:
    """Return the root's key by the attributes of a part; it is empty if the part has none."""
    names = facts(mapper).names
    values = {parent: row.get(names[child]) for parent, child in cover.pairs}
    return {} if any(map(_is_missing, values.values())) else values


#: What is in memory, appends to collections that were never loaded included.
LOADED_OR_PENDING = PassiveFlag.PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS

#: All of them, as SQLAlchemy reads them for a delete: also where the application may not.
_ALL = PassiveFlag.PASSIVE_OFF | PassiveFlag.NO_RAISE


class Reading:
    """Read values and roots that are not in memory."""

    def row(self, state: State) -> Mapping[str, Any] | None:
        """Return the stored row of a part, if it was read for that."""
        return None

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
        for row in _rows_with(session, root, [_key(root, values)], ()).values():
            for obj in _load(session, root, [row]):
                return obj
        return None


#: A class of roots, some of its columns, and the values that a part has for them.
Key = tuple[Mapper[Any], tuple[Any, ...], tuple[Any, ...]]


class Together(Reading):
    """Note the roots that are not in memory; :meth:`read` reads all of them."""

    def __init__(self) -> None:
        #: Those that are still to be read.
        self.absent: dict[Key, None] = {}
        #: What was read. The session holds an unchanged object weakly.
        self._found: dict[Key, Any] = {}
        #: Keys of what the session had before: a root may be found by another column than its key.
        self._held: set[Any] | None = None
        #: Changed parts without a version, whose roots were not there to show that they moved.
        self.unsure: list[State] = []
        self._rows: dict[State, Mapping[str, Any]] = {}

    def row(self, state: State) -> Mapping[str, Any] | None:
        return self._rows.get(state)

    def root(self, session: Session, root: Mapper[Any], values: Values) -> Any:
        key = _key(root, values)
        if key not in self._found:
            self.absent[key] = None
        return self._found.get(key)

    def has_read(self, state: State) -> bool:
        """Return whether the session did not have the root before."""
        return self._held is not None and state.key not in self._held

    def read(self, session: Session, uow: UOWTransaction) -> None:
        """Read the roots, and the roots of these.

        Keys are read ahead without a lock, where they are unknown: a row is locked after those
        that it belongs to.
        """
        if self._held is None:
            self._held = set(session.identity_map.keys())
        above: list[State] = []
        placed = self._place(session, above)
        wanted: dict[Mapper[Any], set[Identity]] = {}
        for key, identity in placed.items():
            if _in_session(session, key[0], identity) is None:
                wanted.setdefault(key[0], set()).add(identity)
        loaded: dict[Any, Any] = {}
        for root, identities in in_order(session, uow, wanted, above):
            for obj in _load(session, root, identities):
                loaded[root, identity_of(instance_state(obj))] = obj
        for key in self.absent:
            root, its = key[0], placed[key]
            obj = loaded.get((root, its)) or _in_session(session, root, its)
            if obj is None and any(isinstance(value, str) for value in its):
                obj = next(iter(_load(session, root, [its])), None)  # spelled otherwise
            self._found[key] = obj
        self.absent = {}

    def note_unsure(self, state: State) -> None:
        """Note a changed part whose roots were not in the session, if it has no version."""
        stored = state.key is not None and state not in self._rows
        if stored and not facts(state.mapper).token and foreign_keys_of(state.mapper):
            self.unsure.append(state)

    def read_parts(self, session: Session, uow: UOWTransaction) -> list[Any]:
        """Lock and read those parts, and return them: they may have other roots by now."""
        by_class: dict[Mapper[Any], dict[Identity, State]] = {}
        for state in self.unsure:
            by_class.setdefault(state.mapper, {})[identity_of(state)] = state
        self.unsure = []
        for mapper, identities in in_order(session, uow, by_class):
            connection = connection_to_write(session, mapper)
            names = tuple(foreign_keys_of(mapper) or ())
            found = read_stored(connection, mapper, identities, only=names)
            for identity, state in by_class[mapper].items():
                self._rows[state] = found.get(identity, {})
        return [one.obj() for states in by_class.values() for one in states.values()]

    def all(
        self,
        session: Session,
        uow: UOWTransaction,
        keys: Iterable[tuple[Mapper[Any], Values]],
    ) -> list[Any]:
        """Return the roots with these keys; those that are not in the session are read."""
        wanted = list(keys)
        found = [_by_key(session, root, values, self) for root, values in wanted]
        if self.absent:
            self.read(session, uow)
            found = [_by_key(session, root, values, self) for root, values in wanted]
        return [obj for obj in found if obj is not None]

    def _place(self, session: Session, held: list[State]) -> dict[Key, Identity]:
        """Return the primary keys of the roots, and of those that they belong to.

        ``held`` gets those that the session has.
        """
        placed: dict[Key, Identity] = {}
        while waiting := [key for key in self.absent if key not in placed]:
            for (root, columns), keys in _grouped(waiting).items():
                above = [one for one in covers_of(root)[0] if not one.by_links]
                if not above and set(columns) == set(root.primary_key):
                    order = [columns.index(column) for column in root.primary_key]
                    placed |= {key: tuple(key[2][n] for n in order) for key in keys}
                    continue
                children = [child for one in above for _, child in one.pairs]
                rows = _rows_with(session, root, keys, children)
                for key in keys:
                    row = rows.get(key)
                    if row is None:
                        self._found[key] = self.absent.pop(key)
                        continue
                    width = len(root.primary_key)
                    placed[key] = tuple(row[:width])
                    values = dict(zip(children, row[width:], strict=True))
                    for one in above:
                        named = {parent: values[child] for parent, child in one.pairs}
                        self._look_above(session, one.root, named, held)
        return placed

    def _look_above(
        self, session: Session, top: Mapper[Any], values: Values, held: list[State]
    ) -> None:
        obj = _by_key(session, top, values, self)
        if obj is not None:
            held.append(state := instance_state(obj))
            for one in covers_of(state.mapper)[0]:
                if not one.by_links:
                    list(find_roots(session, state, one.root, one.relationship, self))


def _key(root: Mapper[Any], values: Values) -> Key:
    return root, tuple(values), tuple(values.values())


def _grouped(keys: Iterable[Key]) -> dict[tuple[Mapper[Any], tuple[Any, ...]], list[Key]]:
    groups: dict[Any, list[Key]] = {}
    for key in keys:
        groups.setdefault(key[:2], []).append(key)
    return groups


def _in_session(session: Session, root: Mapper[Any], identity: Identity) -> Any:
    return session.identity_map.get(root.identity_key_from_primary_key(identity))


def _rows_with(
    session: Session, root: Mapper[Any], keys: list[Key], more: Sequence[Any]
) -> dict[Key, tuple[Any, ...]]:
    """Return the primary keys of rows with these values, and ``more`` columns, without a lock."""
    connection = connection_to_write(session, root)
    names, source = facts(root).rows
    columns = list(keys[0][1])
    query = select(*names, *more, *columns).select_from(source)
    rows = rows_at(connection, lambda: query, facts(root).table, columns, [key[2] for key in keys])
    width = len(names) + len(more)
    found = {tuple(row[width:]): tuple(row[:width]) for row in rows}
    if len(keys) == 1:
        return dict.fromkeys(keys, next(iter(found.values()))) if found else {}
    read = {key: found[key[2]] for key in keys if key[2] in found}
    for key in keys:
        if key not in read and any(isinstance(value, str) for value in key[2]):
            read |= _rows_with(session, root, [key], more)  # spelled otherwise
    return read


def _load(session: Session, root: Mapper[Any], identities: Sequence[Identity]) -> Iterator[Any]:
    """Yield the stored objects with these keys, which are locked in their order."""
    connection = connection_to_write(session, root)
    database, table = database_of(connection.dialect), facts(root).table
    database.locks.begin_writing(connection, table)
    keys = list(root.primary_key)
    step = database.keys.keys_at_once(len(keys))

    def ask(some: Sequence[Identity]) -> Any:
        query = select(root.class_).where(database.keys.at_keys(keys, some)).order_by(*keys)
        return session.scalars(database.locks.lock(query, table, deleting=False)).unique().all()

    for start in range(0, len(identities), step):
        yield from lock_in_turn(database, table, identities[start : start + step], ask)


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
    row = look.row(state)
    if row is not None:  # it may have moved since
        yield {parent: row.get(name) for parent, name in pairs}


def _value(state: State, name: str, look: Reading) -> Any:
    try:
        return look.value(state, name)
    except InvalidRequestError:  # raiseload
        return LoaderCallableStatus.NO_VALUE


def _known(values: Values) -> Values:
    return {parent: value for parent, value in values.items() if not _is_unknown(value)}


def _is_unknown(value: Any) -> bool:
    return isinstance(value, LoaderCallableStatus)


def _is_missing(value: Any) -> bool:
    return value is None or _is_unknown(value)


def _has_key(obj: Any, values: Values) -> bool:
    root = instance_state(obj)
    return all(
        root.dict.get(facts(root.mapper).names[column]) == value for column, value in values.items()
    )


def _by_key(session: Session, root: Mapper[Any], values: Values, look: Reading) -> Any:
    """Return the root in the session, or look for it; ``None`` if there is no such row."""
    if not values or any(map(_is_missing, values.values())):
        return None
    keys = tuple(root.primary_key)
    if set(values) == set(keys):
        identity = root.identity_key_from_primary_key(tuple(values[key] for key in keys))
        known = session.identity_map.get(identity)
        if known is not None:
            return known
    return look.root(session, root, values)
