"""Which relationships count as part of their root, and whose version a flush moves for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy.orm import Mapper, RelationshipDirection, RelationshipProperty, Session
from sqlalchemy.orm.attributes import instance_state

from optilock.aggregates.roots import AS_FAR_AS_KNOWN, find_roots
from optilock.errors import ConfigurationError
from optilock.mapped.facts import facts
from optilock.mapped.keys import State
from optilock.mapping.compared import changed_names
from optilock.mapping.moves import touch_state
from optilock.rows.seen import recall
from optilock.rows.touch import ROOTS, note_roots
from optilock.session.order import at_step
from optilock.session.watched import stands_still
from optilock.undocumented import classes_to_flush

__all__ = ["cover"]


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
    """From here on, changes of these relationships' rows move the version of ``mapper``'s rows.

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
    at_step("roots", None, before_flush=_touch_roots)


# -- at a flush -----------------------------------------------------------------------------------


def _touch_roots(session: Session, uow: Any, objects: Any) -> None:
    """Touch the roots of all that changed, and the roots of these, in the versions seen."""
    if not any(any(_covers_of(mapper)) for mapper in classes_to_flush(session)):
        if ROOTS in session.__dict__:
            note_roots(session, set())
        return
    waiting = [*session.new, *session.dirty, *session.deleted]
    seen: set[State] = set()
    while waiting:
        for root in _roots(session, waiting.pop()):
            state = instance_state(root)
            if state not in seen and _is_there(session, root):
                seen.add(state)
                recall(state)
                touch_state(state)
                waiting.append(root)
    note_roots(session, seen)


def _roots(session: Session, obj: Any) -> Iterator[Any]:
    """The roots that the object's changes belong to, itself among them for its collections."""
    state = instance_state(obj)
    of_child, of_root = _covers_of(state.mapper)
    for one in of_root:
        history = state.get_history(one.relationship.key, AS_FAR_AS_KNOWN)
        if history.added or history.deleted:
            yield obj
        if not one.by_links:  # whose children were they?
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
    if stands_still(session, obj):
        return False
    ignored = facts(state.mapper).ignored
    columns = state.mapper.columns
    changed = changed_names(state)
    if any(columns[name] not in ignored for name in changed):
        return True
    return any(  # a many-to-one whose foreign key is written in the flush
        relationship.direction is RelationshipDirection.MANYTOONE
        and state.get_history(relationship.key, AS_FAR_AS_KNOWN).has_changes()
        for relationship in state.mapper.relationships
        if relationship.key in state.committed_state
    )


def _is_there(session: Session, obj: Any) -> bool:
    return (
        instance_state(obj).persistent
        and obj not in session.deleted
        and not stands_still(session, obj)
    )


def _covers_of(mapper: Mapper[Any]) -> tuple[list[Cover], list[Cover]]:
    """Where an object of the class is a child, or is linked to; and what it is the root of."""
    found = _of.get(mapper)
    if found is None:
        found = _of[mapper] = (
            [one for one in _covers if mapper.isa(one.relationship.mapper)],
            [one for one in _covers if mapper.isa(one.root)],
        )
    return found


# -- what is refused ------------------------------------------------------------------------------


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
    """A child of another subclass, or of the parent itself, is told apart by its rows alone."""
    owner = relationship.parent
    if owner is not mapper:
        raise ConfigurationError(
            f"{mapper.class_.__name__}.__version_root_of__ names {relationship.key!r}, which is"
            f" inherited from {owner.class_.__name__}: its rows belong to all of these. Name it in"
            f" {owner.class_.__name__}.__version_root_of__."
        )


def _refuse_circle(mapper: Mapper[Any], relationship: RelationshipProperty[Any]) -> None:
    """No class may be the root of itself, through whatever others."""
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
    """Can one object be of both classes? Two children of one parent class cannot."""
    return one.isa(other) or other.isa(one)
