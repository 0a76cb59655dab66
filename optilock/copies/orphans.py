"""Objects that are deleted because they were taken from where they belong (``delete-orphan``).

::

    book.pages.remove(page)      # or page.book = None, book.pages = [], book.cover = another
    session.commit()             # DELETE FROM pages ...

SQLAlchemy finds orphans in the flush; the decision is made before. What is read in between, by a
query with ``populate_existing``, would give the delete a version whose row nobody has looked at. So
the version that is held at the removal is noted, as ``session.delete()`` notes it, and so it is for
what is known to go with the orphan. Nothing is read for it, and who removes nothing pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import event, inspect
from sqlalchemy.orm import InstanceState, Mapper, PassiveFlag, RelationshipProperty
from sqlalchemy.orm.attributes import instance_state

from optilock.mapped.keys import State
from optilock.rows.seen import remember_removed
from optilock.session.watched import is_watched
from optilock.undocumented import is_child

__all__ = ["notice_orphans"]


def notice_orphans(mapper: Mapper[Any]) -> None:
    """From here on, note the versions of what is removed from objects of the class."""
    for relationship in mapper.relationships:
        if relationship.cascade.delete_orphan and relationship.parent is mapper:
            _notice(relationship)


def _notice(relationship: RelationshipProperty[Any]) -> None:
    attribute, key = relationship.class_attribute, relationship.key

    def remove(parent: State, obj: Any, initiator: Any) -> None:
        _removed(parent, key, obj)

    def replace(parent: State, obj: Any, before: Any, initiator: Any) -> None:
        if before is not obj:
            _removed(parent, key, before)

    event.listen(attribute, "remove", remove, raw=True, propagate=True)
    if not relationship.uselist:
        event.listen(attribute, "set", replace, raw=True, propagate=True)


def _removed(parent: State, key: str, obj: Any) -> None:
    """``obj`` was taken from the attribute ``key`` of ``parent``."""
    state = inspect(obj, raiseerr=False)
    if not isinstance(state, InstanceState) or state.key is None:  # none, or not stored yet
        return
    session = state.session
    if session is not None and not is_watched(session):
        return

    def stands() -> bool:
        return _is_orphan(state, parent, key)

    remember_removed((state, *_below(state)), stands)


def _is_orphan(state: State, parent: State, key: str) -> bool:
    """Will the flush delete it? Not where it has got a parent again, or the parent was expired."""
    known = is_child(state, parent.class_, key)
    if known is not None:
        return not known
    if parent.obj() is None or key not in parent.committed_state:
        return False
    gone = parent.get_history(key, PassiveFlag.PASSIVE_NO_INITIALIZE).deleted
    return any(instance_state(one) is state for one in gone if one is not None)


def _below(state: State) -> Iterator[State]:
    """What is deleted with an object, as far as it is in memory."""
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
