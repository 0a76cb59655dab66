"""Aggregates: a root whose version moves when anything that belongs to it changes.

::

    class Order(Versioned, Base):
        __version_root_of__ = ("lines",)          # names of its relationships
        lines: Mapped[list[Line]] = relationship(back_populates="order")

A session that adds, changes, removes or re-parents a line moves the version of the order (of both
orders), once a flush, and checks it: two sessions that change different lines of one order conflict
on the order. Off by default: rows that do not depend on each other should not wait for each other.

Of a one-to-many relationship the rows of the children count, with all their columns that are not
ignored; of a many-to-many relationship the link rows, not the objects behind them. A child that is
itself a root passes it on. A new root has its first version anyway; one that is deleted is left
alone; one that is not in the session is read and locked, and one that is expired is checked in
the version that a watched session has seen, unless its parts are read: its row is read for that.
The root's entry in a conflict has no ``changes``, so ``merge_fields`` settles it.

A child names its root in three ways: by the object that a many-to-one attribute holds, by the
foreign key column, and by being in the root's collection, which the root itself names. All roots
that can be known without a query are known so; a root that is known by its key alone is read, with
a lock, so that it cannot have moved when its version is written. This happens before each flush
(:mod:`optilock.watched.session.order`), in plain sessions as well.
Statements that write children around the session (``update(Line)``, SQL) are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
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
)
from sqlalchemy.orm.attributes import instance_state

from optilock.dialects import database_of
from optilock.dialects.rows import ask_with_hint
from optilock.errors import ConfigurationError
from optilock.mapped import State, facts, identity_of
from optilock.mapping.moves import touch_state
from optilock.mapping.original_values import changed_names
from optilock.undocumented.flushes import classes_to_flush
from optilock.watched.rows.seen import recall_version
from optilock.watched.rows.stored import read_stored
from optilock.watched.rows.touch import ROOTS, note_roots
from optilock.watched.session.connections import connection_to_write
from optilock.watched.session.order import add_step
from optilock.watched.session.record import keeps_version

#: Column of the root -> value.
Values = dict[Any, Any]

#: What is in memory, appends to collections that were never loaded included.
LOADED_OR_PENDING = PassiveFlag.PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS

#: All of them, as SQLAlchemy reads them for a delete: also where the application may not.
_ALL = PassiveFlag.PASSIVE_OFF | PassiveFlag.NO_RAISE


def find_roots(
    session: Session, state: State, root: Mapper[Any], relationship: RelationshipProperty[Any]
) -> Iterator[Any]:
    """Yield the roots of ``state`` by ``relationship`` of ``root``; one may come more than once.

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
    """Yield roots whose link to this object is added or removed on this side."""
    for own in state.mapper.relationships:
        if own.secondary is relationship.secondary and own is not relationship:
            if state.obj() in session.deleted:  # all its links go; SQLAlchemy reads them as well
                history = state.get_history(own.key, _ALL)
                objects = history.non_added()
            else:
                history = state.get_history(own.key, LOADED_OR_PENDING)
                objects = [*history.added, *history.deleted]
            yield from objects


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
    session: Session, state: State, relationship: RelationshipProperty[Any]
) -> Iterator[Values]:
    """Yield the root's key (column -> value) as it is to be, and as stored if that differs."""
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
    """Return the attribute's value; an expired one is read, as the flush would do."""
    try:
        return state.manager[name].impl.get(
            state,
            state.dict,
            PassiveFlag.PASSIVE_OFF if state.key else PassiveFlag.PASSIVE_NO_FETCH,
        )
    except InvalidRequestError:  # raiseload
        return LoaderCallableStatus.NO_VALUE


def _stored(session: Session, state: State, pairs: list[tuple[Any, str]]) -> Values:
    """Read the stored value of attributes that were not loaded."""
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
    """Return the root in the session, or read and lock it; ``None`` if there is no such row."""
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
    found: Any = ask_with_hint(
        database, table, lambda: session.scalars(database.lock(query, table, deleting=False))
    )
    return found.first()


@dataclass(frozen=True, eq=False)
class Cover:
    """One relationship whose rows count as part of its root."""

    root: Mapper[Any]
    relationship: RelationshipProperty[Any]

    @property
    def by_links(self) -> bool:
        return self.relationship.secondary is not None


_covers: list[Cover] = []
#: Those that an object of a class may belong to, and those that it is the root of.
_of: WeakKeyDictionary[Mapper[Any], tuple[list[Cover], list[Cover]]] = WeakKeyDictionary()


def cover(mapper: Mapper[Any], names: Any) -> None:
    """Let changes of these relationships' rows move the version of ``mapper``'s rows.

    Raises:
        ConfigurationError: a name is not that of a relationship that owns rows, the class has no
            version that moves by itself, or a root would be its own child.
    """
    known = {one.relationship for one in _covers}
    for name in names:
        relationship = _relationship(mapper, name)
        if relationship not in known:
            _refuse_inherited(mapper, relationship)
            _covers.append(Cover(mapper, relationship))
            _refuse_circle(mapper, relationship)
    _of.clear()
    add_step("roots", _concerned, before_flush=_touch_roots)


# -- at a flush ------------------------------------------------------------------------------------


def _concerned(session: Session) -> bool:
    """Return whether the session flushes parts or roots, or its last flush did."""
    if ROOTS in session.__dict__:
        return True
    return any(any(_covers_of(mapper)) for mapper in classes_to_flush(session))


def _touch_roots(session: Session, uow: Any, objects: Any) -> None:
    """Touch the roots of all that changed, and the roots of these, in the versions seen."""
    waiting = [*session.new, *session.dirty, *session.deleted]
    seen: set[State] = set()
    while waiting:
        for root in _roots(session, waiting.pop()):
            state = instance_state(root)
            if state not in seen and _is_there(session, root):
                seen.add(state)
                recall_version(state)
                touch_state(state)
                waiting.append(root)
    note_roots(session, seen)


def _roots(session: Session, obj: Any) -> Iterator[Any]:
    """Yield the roots that the object's changes belong to, itself included."""
    state = instance_state(obj)
    of_child, of_root = _covers_of(state.mapper)
    for one in of_root:
        history = state.get_history(one.relationship.key, LOADED_OR_PENDING)
        if history.added or history.deleted:
            yield obj
        if not one.by_links:  # the roots that they had before
            for child in history.added:
                if child is not None:
                    yield from find_roots(
                        session, instance_state(child), one.root, one.relationship
                    )
    for one in of_child:
        if one.by_links or _row_changed(session, state):
            yield from find_roots(session, state, one.root, one.relationship)


def _row_changed(session: Session, state: State) -> bool:
    obj = state.obj()
    if state.key is None or obj in session.deleted:
        return True
    if keeps_version(session, obj):
        return False
    ignored = facts(state.mapper).ignored
    columns = state.mapper.columns
    changed = changed_names(state)
    if any(columns[name] not in ignored for name in changed):
        return True
    return any(  # a many-to-one whose foreign key is written in the flush
        relationship.direction is RelationshipDirection.MANYTOONE
        and state.get_history(relationship.key, LOADED_OR_PENDING).has_changes()
        for relationship in state.mapper.relationships
        if relationship.key in state.committed_state
    )


def _is_there(session: Session, obj: Any) -> bool:
    return (
        instance_state(obj).persistent
        and obj not in session.deleted
        and not keeps_version(session, obj)
    )


def _covers_of(mapper: Mapper[Any]) -> tuple[list[Cover], list[Cover]]:
    """Return the covers in which the class is a child, and those of which it is the root."""
    found = _of.get(mapper)
    if found is None:
        found = _of[mapper] = (
            [one for one in _covers if mapper.isa(one.relationship.mapper)],
            [one for one in _covers if mapper.isa(one.root)],
        )
    return found


def roots_of_object(session: Session, obj: Any) -> Iterator[Any]:
    """Yield the roots that a stored object is a part of, itself not included."""
    state = instance_state(obj)
    for one in _covers_of(state.mapper)[0]:
        if not one.by_links:
            yield from find_roots(session, state, one.root, one.relationship)


def roots_of(mapper: Mapper[Any], *, by_links: bool) -> list[str]:
    """Return the relationships by which a row of the class, or a link to it, is part of a root."""
    return [
        f"{one.root.class_.__name__}.{one.relationship.key}"
        for one in _covers_of(mapper)[0]
        if by_links or not one.by_links
    ]


# -- refusals --------------------------------------------------------------------------------------


def _relationship(mapper: Mapper[Any], name: str) -> RelationshipProperty[Any]:
    what = f"{mapper.class_.__name__}.__version_root_of__ names {name!r}, which is"
    known = facts(mapper)
    if not known.token or known.by_application or known.by_values:
        raise ConfigurationError(
            f"{mapper.class_.__name__} has __version_root_of__, but no version that moves by"
            " itself: give it a token that has a column and can be moved, such as Counter()."
        )
    relationship = mapper.relationships.get(name)
    if relationship is None:
        names = ", ".join(sorted(mapper.relationships.keys())) or "none"
        raise ConfigurationError(f"{what} not a relationship. It has: {names}.")
    if relationship.viewonly:
        raise ConfigurationError(f"{what} viewonly: it is never written. Name the one that is.")
    if relationship.direction is RelationshipDirection.MANYTOONE:
        raise ConfigurationError(
            f"{what} many-to-one: the row on its other side belongs to itself, and to all that"
            f" point to it. Name {mapper.class_.__name__} in the other class's"
            " __version_root_of__, if it is that one's child."
        )
    return relationship


def _refuse_inherited(mapper: Mapper[Any], relationship: RelationshipProperty[Any]) -> None:
    """Refuse an inherited relationship: its rows may belong to the parent or another subclass."""
    owner = relationship.parent
    if owner is not mapper:
        raise ConfigurationError(
            f"{mapper.class_.__name__}.__version_root_of__ names {relationship.key!r}, which is"
            f" inherited from {owner.class_.__name__}: its rows belong to all of these. Name it in"
            f" {owner.class_.__name__}.__version_root_of__."
        )


def _refuse_circle(mapper: Mapper[Any], relationship: RelationshipProperty[Any]) -> None:
    """Refuse a class that would be the root of itself, directly or through others."""
    waiting, seen = [relationship.mapper], set()
    while waiting:
        child = waiting.pop()
        if _share_rows(child, mapper):
            _covers[:] = [one for one in _covers if one.relationship is not relationship]
            raise ConfigurationError(
                f"{mapper.class_.__name__}.__version_root_of__ names {relationship.key!r}, which"
                f" makes {mapper.class_.__name__} a part of itself: a change would go around"
                " forever. Leave it out."
            )
        if child not in seen:
            seen.add(child)
            waiting += [
                one.relationship.mapper
                for one in _covers
                if _share_rows(one.root, child) and not one.by_links
            ]


def _share_rows(one: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether one object can be of both classes: two children of one parent cannot."""
    return one.isa(other) or other.isa(one)
