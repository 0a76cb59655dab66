"""The triggers that move scopes when other programs write rows, in migrations.

::

    op.create_scope_trigger("bookings", [["room_id"], []], ignore=["seen"], columns=["room_id"])

Create them after the tables, and after ``op.create_optilock_tables("scopes")``. After a change of
``__version_scopes__`` or of ``__version_ignore__`` create them again (autogenerate does). On SQLite
``batch_alter_table`` drops them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
from optilock.dialects.scope_triggers import ScopeTrigger
from optilock.errors import ConfigurationError


@dataclass(eq=False)
class _ScopeOperation(VersionOperation):
    made: ScopeTrigger

    def call(self) -> Call:
        made = self.made
        options = {
            "ignore": list(made.ignore) or None,
            "columns": list(made.columns) or None,
            "uuids": list(made.uuids) or None,
            "schema": made.schema,
        }
        return Call(self.verb, (made.table, [list(one) for one in made.scopes]), options)

    @classmethod
    def invoke(
        cls,
        operations: Any,
        table: str,
        scopes: Iterable[Iterable[str]],
        *,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        uuids: Iterable[str] = (),
        schema: str | None = None,
    ) -> None:
        given = list(scopes)
        if any(isinstance(one, str) for one in (scopes, *given)):
            raise ConfigurationError(
                f"op.{cls.verb}({table!r}, {scopes!r}): write a list of columns for each scope:"
                ' [["room_id"], []].'
            )
        keys = tuple(tuple(one) for one in given)
        names = tuple(ignore), tuple(columns), tuple(uuids)
        operations.invoke(cls(ScopeTrigger(table, keys, *names, schema)))

    def statements(self, operations: Operations, kind: str) -> None:
        dialect = operations.get_context().dialect
        triggers = database_of(dialect).scope_triggers(dialect)
        with explain_forbidden(operations, f"{kind} triggers on {self.made.table}"):
            for statement in getattr(triggers, kind)(self.made):
                send(operations, statement)


@register_as("create_scope_trigger")
class CreateScopeTrigger(_ScopeOperation):
    """Let other programs' writes of a table move its scopes; triggers that are there are replaced.

    Args:
        scopes: a list of columns for each scope; an empty one for the whole table.
        ignore: columns whose change does not count.
        columns: those whose change does; needed beside ``ignore`` on MariaDB and SQLite.
        uuids: columns of scopes that hold UUIDs.

    Raises:
        OptilockError: the user may not create triggers; nothing was changed.
    """

    def do(self, operations: Operations) -> None:
        if self.made.ignore and not self.made.columns:
            raise ConfigurationError(
                f"op.create_scope_trigger({self.made.table!r}, ignore=...) needs the columns that"
                " count: columns=[...]. Nothing was changed."
            )
        self.statements(operations, "create")


@register_as("drop_scope_trigger")
class DropScopeTrigger(_ScopeOperation):
    """Drop the triggers of a table's scopes, if they are there; arguments are for the reverse."""

    def do(self, operations: Operations) -> None:
        self.statements(operations, "drop")


pair(CreateScopeTrigger, DropScopeTrigger)
