"""Link rows (many-to-many) that somebody else has removed.

A link row has no version: taking away one that is not there any more is no version conflict, and no
edit of anybody is lost. SQLAlchemy reports it with the error of a version conflict and rolls back.
Here the flush goes on, everything else is written, and :class:`~optilock.LinkGone` says what was
found; or nothing, where the policy for deletes of a class at one end of the link lets it pass.

A link that somebody else has added already stays what it is, an ``IntegrityError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Table

from optilock.deletes import OnDelete, policy_for
from optilock.errors import LinkGone
from optilock.guard.answers import Counted

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["judge_links"]


def judge_links(flush: Flush, statement: Any, rows: list[Any], result: Any) -> Any:
    """The answer for the link rows that a flush takes away, or moves to another key."""
    if result.rowcount == len(rows) or not result.supports_sane_multi_rowcount():
        return result
    ends = _ends(flush, statement.table)
    if not ends:
        return result
    verb = "delete" if isinstance(statement, Delete) else "update"
    on_delete = flush.known.on_delete
    lenient = any(policy_for(end, on_delete) is not OnDelete.STRICT for end in ends)
    if verb == "update" or not lenient:
        gone = LinkGone(statement.table.description, rows, result.rowcount, verb)
        flush.gone_links = [*flush.gone_links, gone]
    return Counted(result, len(rows), rows)


def _ends(flush: Flush, table: Table) -> list[type[Any]]:
    """The classes of this flush that are linked by ``table``."""
    assert flush.uow is not None
    return [
        mapper.class_
        for mapper in flush.uow.mappers
        if any(relationship.secondary is table for relationship in mapper.relationships)
    ]
