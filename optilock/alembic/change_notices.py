"""The triggers that notify of changed rows, in migrations (:mod:`optilock.live`).

::

    op.add_change_notice("pages")

They follow the primary key and the columns that the table has when it is written, so a change of
its columns needs no new ones. Other databases than PostgreSQL have no notifications, and the
operations do nothing there.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from alembic.operations import Operations

from optilock.alembic.operations import (
    Call,
    VersionOperation,
    explain_forbidden,
    pair,
    register_as,
    send,
)
from optilock.dialects import database_of
from optilock.dialects.change_notices import ChangeNotice


@dataclass(eq=False)
class _NoticeOperation(VersionOperation):
    table: str
    _: KW_ONLY
    schema: str | None = None

    def call(self) -> Call:
        return Call(self.verb, (self.table,), {"schema": self.schema})

    @classmethod
    def invoke(cls, operations: Any, table: str, *, schema: str | None = None) -> None:
        operations.invoke(cls(table, schema=schema))

    def statements(self, operations: Operations, kind: str) -> None:
        dialect = operations.get_context().dialect
        notices = database_of(dialect).change_notices(dialect)
        with explain_forbidden(operations, f"{kind} triggers on {self.table}"):
            for statement in getattr(notices, kind)(ChangeNotice(self.table, self.schema)):
                send(operations, statement)


@register_as("add_change_notice")
class AddChangeNotice(_NoticeOperation):
    """Notify listeners of changed rows of a table; triggers that are there are replaced.

    Raises:
        OptilockError: the user may not create triggers; nothing was changed.
    """

    def do(self, operations: Operations) -> None:
        self.statements(operations, "create")


@register_as("drop_change_notice")
class DropChangeNotice(_NoticeOperation):
    """Drop the triggers that notify of changed rows of a table, if they are there."""

    def do(self, operations: Operations) -> None:
        self.statements(operations, "drop")


pair(AddChangeNotice, DropChangeNotice)
