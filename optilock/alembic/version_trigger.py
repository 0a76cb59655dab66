"""The trigger that makes the versions of a ``RowVersion``.

::

    op.create_version_trigger("items", RowVersion())
    op.drop_version_trigger("items", RowVersion())

``metadata.create_all()`` makes it with the table; a migration makes it by this operation, after the
table or the column. Its SQL is :func:`optilock.mapping.triggers.trigger_ddl`.
"""

from __future__ import annotations

from typing import Any

from alembic.operations import Operations
from sqlalchemy import Column, MetaData, Table

from optilock.alembic.columns import look, permitted
from optilock.alembic.guard_trigger import run
from optilock.alembic.operation import Call, VersionOperation
from optilock.dialects.triggers import TriggerDDL
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_ddl
from optilock.rollout.target import require_present
from optilock.tokens import Token

__all__ = ["CreateVersionTrigger", "DropVersionTrigger"]


class _TriggerOperation(VersionOperation):
    verb: str

    def __init__(self, table: str, token: Token, *, schema: str | None = None) -> None:
        self.table = table
        self.token = token
        self.schema = schema

    def call(self) -> Call:
        return Call(self.verb, (self.table, self.token), {"schema": self.schema})


@Operations.register_operation("create_version_trigger")
class CreateVersionTrigger(_TriggerOperation):
    """The trigger is made, also in the place of one that was there."""

    verb = "create_version_trigger"

    @classmethod
    def create_version_trigger(
        cls, operations: Any, table: str, token: Token, *, schema: str | None = None
    ) -> None:
        """Let the database move the version of a table.

        Raises:
            ConfigurationError: no such table or column, or a token that needs no trigger.
            OptilockError: the user may not create triggers; nothing was changed.
        """
        operations.invoke(cls(table, token, schema=schema))

    def reverse(self) -> DropVersionTrigger:
        return DropVersionTrigger(self.table, self.token, schema=self.schema)


@Operations.register_operation("drop_version_trigger")
class DropVersionTrigger(_TriggerOperation):
    """The trigger goes, if it is there; the version moves no more."""

    verb = "drop_version_trigger"

    @classmethod
    def drop_version_trigger(
        cls, operations: Any, table: str, token: Token, *, schema: str | None = None
    ) -> None:
        """Stop the database from moving the version of a table."""
        operations.invoke(cls(table, token, schema=schema))

    def reverse(self) -> CreateVersionTrigger:
        return CreateVersionTrigger(self.table, self.token, schema=self.schema)


@Operations.implementation_for(CreateVersionTrigger)
def _create(operations: Operations, operation: CreateVersionTrigger) -> None:
    ddl = _ddl(operations, operation)
    with permitted(operations, f"create triggers on {operation.table}"):
        for statement in (*ddl.drop, *ddl.create):
            run(operations, statement)


@Operations.implementation_for(DropVersionTrigger)
def _drop(operations: Operations, operation: DropVersionTrigger) -> None:
    with permitted(operations, f"drop triggers of {operation.table}"):
        for statement in _ddl(operations, operation).drop:
            run(operations, statement)


def _ddl(operations: Operations, operation: _TriggerOperation) -> TriggerDDL:
    token, name, schema = operation.token, operation.table, operation.schema
    if not token.has_trigger:
        raise ConfigurationError(
            f"{token!r} is not moved by a trigger; RowVersion() is. For a trigger that moves what"
            " a foreign UPDATE left alone write op.create_guard_trigger."
        )
    target = look(operations, name, schema, token)
    if target is not None:
        require_present(target, name)
        return trigger_ddl(target.table, target.version, operations.get_context().dialect)
    table = Table(name, MetaData(), Column(token.column_name, token.type()), schema=schema)
    [column] = table.columns
    return trigger_ddl(table, column, operations.get_context().dialect)
