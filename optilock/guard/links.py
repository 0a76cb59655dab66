"""Link rows (many-to-many) that somebody else has removed.

A link row has no version: taking away one that is not there any more is no version conflict, and no
edit of anybody is lost. SQLAlchemy reports it with the error of a version conflict and rolls back.
Here the flush goes on, everything else is written, and :class:`~optilock.LinkGone` says what was
found; or nothing, where the policy for deletes of a class at one end of the link lets it pass.

A link that somebody else has added already stays what it is, an ``IntegrityError``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Delete, Table

from optilock.conflicts.resolution import OnDelete, policy_for
from optilock.errors import LinkGone
from optilock.guard.records import Flush
from optilock.mapped import key_in
from optilock.writes.answers import Counted
from optilock.writes.shapes import compared_columns

__all__ = ["delete_links", "judge_links"]


#: Values in one statement; every database takes more.
_VALUES = 500


def delete_links(
    flush: Flush, connection: Connection, native: Any, statement: Any, rows: list[Any]
) -> Any:
    """Delete link rows so that they are counted.

    Some drivers (asyncpg, asyncmy) do not count the rows of an ``executemany``: there one statement
    names many of them.
    """
    counts = connection.dialect.supports_sane_multi_rowcount
    compared = None if counts or type(statement) is not Delete else compared_columns(statement)
    if not compared or not rows or not _ends(flush, statement.table):
        return native(statement, rows)
    columns = list(compared)
    step = max(1, _VALUES // len(columns))
    found = 0
    for start in range(0, len(rows), step):
        keys = [
            tuple(row[name] for name in compared.values()) for row in rows[start : start + step]
        ]
        result = native(statement.table.delete().where(key_in(columns, keys)))
        found += result.rowcount
    return _Added(result, found)


class _Added(Counted):
    """The answer for rows that went in statements of which each was counted."""

    def supports_sane_multi_rowcount(self) -> bool:
        return True


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
    if result.rowcount > len(rows) and not lenient:
        return result  # a table without a key has a link twice: SQLAlchemy says so, none is gone
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
