"""Edits of rows that nobody has read.

An object may stand for a row without anybody having seen it: ``make_transient_to_detached()``, a
pickle of an expired object, or an object that was read after an UPDATE statement which has been
rolled back. Edited blindly, it would go over whatever is stored. What SQLAlchemy does without a
version depends on the mapping (columns of a joined child it writes without a check), so the flush
is refused before it begins: nothing is sent, and every edit is where it was.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import RelationshipDirection, Session
from sqlalchemy.orm.state import InstanceState

from optilock.mapping.facts import facts
from optilock.rows.seen import unread
from optilock.writes.look import never_seen

__all__ = ["refuse_unread"]


def refuse_unread(session: Session, objects: Any) -> None:
    """Raise ``ConfigurationError`` for an edit or a delete of a row that nobody has read."""
    for state in unread(session):
        obj = state.obj()
        if objects and not any(obj is one for one in objects):
            continue
        if obj in session.deleted or (state.modified and _counts(state)):
            assert state.key is not None
            raise never_seen(state.mapper, tuple(state.key[1]))


def _counts(state: InstanceState[Any]) -> bool:
    """Does a column change that is not ignored, a foreign key among them?"""
    ignored, columns = facts(state.mapper).ignored, state.mapper.columns
    return any(
        columns[name] not in ignored for name in state.committed_state if name in columns
    ) or any(
        one.direction is RelationshipDirection.MANYTOONE
        for one in state.mapper.relationships
        if one.key in state.committed_state
    )
