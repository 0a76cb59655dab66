"""Orphans that stay: their parent had let them go, and a resolver keeps their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import PassiveFlag
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.state import InstanceState

from optilock.undocumented import belongs_to, marked_deleted

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["LetGo", "no_orphan"]

State = InstanceState[Any]
#: Child -> its former parents, and the names of their collections.
LetGo = dict[State, list[tuple[State, str]]]


def no_orphan(flush: Flush, state: State) -> None:
    """Give the object back to the parent of its row; the next flush would delete it."""
    if state in marked_deleted(flush.session):
        return  # by session.delete(), and not because of a parent
    if flush.let_go is None:
        flush.let_go = _let_go(flush)
    for parent, name in flush.let_go.get(state, ()):
        belongs_to(state, parent, name)
        flush.expire_later.append((parent, name))


def _let_go(flush: Flush) -> LetGo:
    assert flush.uow is not None
    found: LetGo = {}
    for parent in flush.uow.states:
        for relationship in parent.mapper.relationships:
            if relationship.cascade.delete_orphan and relationship.key in parent.committed_state:
                history = parent.get_history(relationship.key, PassiveFlag.PASSIVE_NO_INITIALIZE)
                for child in history.deleted:
                    if child is not None:
                        found.setdefault(instance_state(child), []).append(
                            (parent, relationship.key)
                        )
    return found
