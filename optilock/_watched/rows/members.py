"""Members of collections that the author of a detached copy has not seen, and orphans.

A merge makes a collection in the session equal to that of the copy. A member that the copy does not
have is taken out, and with that deleted, or its foreign key set to NULL, or its link row deleted.
Another user may have added it after the copy was read. No version shows that: the owner's has not
moved (unless it is the root of its members), and the member's own is read by the merge itself. The
copy still knows which members it was loaded with. Other members were not seen.

A collection that was made without having been loaded replaces the stored one, and is not compared.

An object that is taken from its parent is deleted (``delete-orphan``)::

    book.pages.remove(page)      # or page.book = None, book.pages = [], book.cover = another
    session.commit()             # DELETE FROM pages ...

SQLAlchemy finds orphans in the flush; the decision is made before. A query with
``populate_existing`` in between would give the delete a version whose row the author has not seen.
So the version that is held at the removal is noted, as ``session.delete()`` notes it. The same
holds for objects that are deleted with the orphan. No row is read for it, and a session that
removes nothing pays nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import event, inspect
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    PassiveFlag,
    RelationshipDirection,
    RelationshipProperty,
    Session,
)
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts
from optilock._undocumented.mappers import is_child
from optilock._watched.rows.entries import Attempt, entry_of, moved_entry, stored_of
from optilock._watched.rows.seen import remember_removed
from optilock._watched.session.record import is_watched
from optilock.errors import Action, ConcurrencyError, Entry

_ADVICE = (
    "The author of the copy has not seen it; nothing was merged. Read the rows again and apply the"
    " edits to them, or show both versions to their authors."
)


class Members(NamedTuple):
    """One collection of a copy, before the merge."""

    copy: State
    relationship: RelationshipProperty[Any]
    #: The keys of the members that the copy was loaded with.
    seen: Collection[Any]
    #: What the session itself has taken out of its own collection, and not yet written.
    taken_out: Collection[Any]


def members_of(session: Session, copies: Iterable[State]) -> list[Members]:
    """Return the collections of the copies, with the members that they were loaded with."""
    return [
        Members(copy, relationship, seen, _taken_out(session, copy, relationship))
        for copy in copies
        if copy.key is not None and copy.session is not session
        for relationship in copy.mapper.relationships
        if _counts(copy, relationship)
        and (seen := _keys_loaded(copy, relationship.key)) is not None
    ]


def refuse_unseen(session: Session, collections: Iterable[Members]) -> None:
    """Refuse a merge that has taken out members which the copies have not seen.

    Raises:
        ConcurrencyError: it has.
    """
    entries: dict[Any, Entry[Any]] = {}
    lines = []
    for members in collections:
        assert members.copy.key is not None
        owner = session.identity_map.get(members.copy.key)
        if owner is None:
            continue
        for member in _unseen_members(owner, members):
            entry = _entry(session, instance_state(owner), member, members)
            entries.setdefault((entry.model, entry.identity), entry)
            place = f"{_named(members.copy)}.{members.relationship.key}"
            lines.append(
                f"{place} holds {_named(member)}, which was not there when the copy was read, and"
                " the merge would take it out."
            )
    if entries:
        raise ConcurrencyError(entries.values(), "\n".join([*lines, _ADVICE]))  # merge reports it


def _counts(copy: State, relationship: RelationshipProperty[Any]) -> bool:
    """Return whether a merge writes it, and the owner, or the written row, is guarded."""
    if relationship.viewonly or not relationship.cascade.merge:
        return False
    if relationship.direction is RelationshipDirection.MANYTOONE:
        return False  # the copy's own foreign key
    return facts(copy.mapper).guarded or (
        relationship.secondary is None and facts(relationship.mapper).guarded
    )


def _keys_loaded(state: State, name: str) -> set[Any] | None:
    """Return the keys of the members that were loaded; ``None`` where none were."""
    if name not in state.dict:
        return None
    history = state.attrs[name].history
    if name in state.committed_state and not (history.unchanged or history.deleted):
        before = state.committed_state[name]
        if not hasattr(before, "__len__"):
            return None
    return {instance_state(o).key for o in (*history.unchanged, *history.deleted) if o is not None}


def _taken_out(session: Session, copy: State, relationship: RelationshipProperty[Any]) -> set[int]:
    assert copy.key is not None
    owner = session.identity_map.get(copy.key)
    return set() if owner is None else {id(one) for one in _removed(owner, relationship.key)}


def _removed(owner: Any, name: str) -> list[Any]:
    state: State = instance_state(owner)
    if name not in state.dict:
        return []
    return [one for one in state.attrs[name].history.deleted if one is not None]


def _unseen_members(owner: Any, members: Members) -> Iterator[State]:
    for one in _removed(owner, members.relationship.key):
        state = instance_state(one)
        if id(one) not in members.taken_out and state.key not in (None, *members.seen):
            yield state


def _entry(session: Session, owner: State, member: State, members: Members) -> Entry[Any]:
    """Return the entry of the row to be written, if it is guarded, or of the owner."""
    relationship = members.relationship
    if relationship.secondary is not None or not facts(member.mapper).guarded:
        return moved_entry(session, members.copy, owner)
    assert member.key is not None
    action: Action = "delete" if relationship.cascade.delete_orphan else "update"
    attempt = Attempt(member.mapper, tuple(member.key[1]), action, {}, {}, {})
    return entry_of(attempt, stored_of(session, member))


def _named(state: State) -> str:
    assert state.key is not None
    key = tuple(state.key[1])
    return f"{state.mapper.class_.__name__} {key[0] if len(key) == 1 else key!r}"


def notice_orphans(mapper: Mapper[Any]) -> None:
    """Note, from here on, the versions of objects removed from objects of the class."""
    for relationship in mapper.relationships:
        if relationship.cascade.delete_orphan and relationship.parent is mapper:
            _notice(relationship)


def _notice(relationship: RelationshipProperty[Any]) -> None:
    attribute, key = relationship.class_attribute, relationship.key

    def remove(parent: State, obj: Any, initiator: Any) -> None:
        _taken_from(parent, key, obj)

    def replace(parent: State, obj: Any, before: Any, initiator: Any) -> None:
        if before is not obj:
            _taken_from(parent, key, before)

    event.listen(attribute, "remove", remove, raw=True, propagate=True)
    if not relationship.uselist:
        event.listen(attribute, "set", replace, raw=True, propagate=True)


def _taken_from(parent: State, key: str, obj: Any) -> None:
    """Note that ``obj`` was taken from the attribute ``key`` of ``parent``."""
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState) or state.key is None:  # none, or not stored yet
        return
    session = state.session
    if session is not None and not is_watched(session):
        return

    def stands() -> bool:
        return _is_orphan(state, parent, key)

    remember_removed((state, *_cascaded_deletes(state)), stands)


def _is_orphan(state: State, parent: State, key: str) -> bool:
    """Return whether the flush will delete it: it has no new parent, and the old one is loaded."""
    known = is_child(state, parent.class_, key)
    if known is not None:
        return not known
    if parent.obj() is None or key not in parent.committed_state:
        return False
    gone = parent.get_history(key, PassiveFlag.PASSIVE_NO_INITIALIZE).deleted
    return any(instance_state(one) is state for one in gone if one is not None)


def _cascaded_deletes(state: State) -> Iterator[State]:
    """Yield the objects in memory that are deleted with an object."""
    waiting, seen = [state], {state}
    while waiting:
        one = waiting.pop()
        for relationship in one.mapper.relationships:
            if not relationship.cascade.delete:
                continue
            held = one.get_history(relationship.key, PassiveFlag.PASSIVE_NO_INITIALIZE)
            for obj in held.non_deleted():
                child = None if obj is None else instance_state(obj)
                if child is not None and child not in seen:
                    seen.add(child)
                    waiting.append(child)
                    yield child
