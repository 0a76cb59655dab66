"""Triggers as operations: the guard trigger of a table, and the one that makes its versions.

::

    op.create_guard_trigger("pages", Counter(), "bump", ignore=["views"])
    op.drop_guard_trigger("pages", Counter(), "bump", ignore=["views"])
    op.create_version_trigger("items", RowVersion())
    op.drop_version_trigger("items", RowVersion())

With a guard trigger no foreign UPDATE changes a row behind optilock's back. ``"bump"`` moves a
version that an UPDATE left alone; ``"reject"`` refuses that UPDATE. Let alone are UPDATEs that move
the version themselves, as all of optilock's do, those that change nothing but ``ignore``, and on
PostgreSQL those under ``no_bump``.

On MariaDB and SQLite a guard trigger with ``ignore`` names the columns that count. Without
``columns=`` those are taken which the table has at that moment; a column that is added later has to
be told to it by making it anew, which autogenerate does. On SQLite ``batch_alter_table`` drops the
trigger.

The trigger of a ``RowVersion`` is made by ``metadata.create_all()`` with the table; a migration
makes it by this operation, after the table or the column. Its SQL is
:func:`optilock.mapping.triggers.trigger_ddl`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from alembic.operations import Operations
from sqlalchemy import Column, MetaData, Table

from optilock.alembic.operation import Call, VersionOperation, look, permitted, send
from optilock.dialects import database_of
from optilock.dialects.migrations import GuardTriggers, TriggerDDL
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_ddl
from optilock.rollout.target import completed, require_present
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy


class _GuardOperation(VersionOperation):
    def __init__(self, guard: GuardTrigger) -> None:
        self.guard = guard

    def call(self) -> Call:
        guard = self.guard
        options = {
            "ignore": list(guard.ignore) or None,
            "columns": list(guard.columns) or None,
            "schema": guard.schema,
        }
        return Call(self.verb, (guard.table, guard.token, guard.policy), options)


@Operations.register_operation("create_guard_trigger")
class CreateGuardTrigger(_GuardOperation):
    """The trigger is made, also in the place of one that was there."""

    verb = "create_guard_trigger"

    @classmethod
    def create_guard_trigger(
        cls,
        operations: Any,
        table: str,
        token: Token,
        policy: Policy,
        *,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        schema: str | None = None,
    ) -> None:
        """Guard the version of a table.

        Args:
            policy: ``"bump"`` or ``"reject"``.
            ignore: columns whose change does not count.
            columns: those whose change does; needed for ``--sql``, and only beside ``ignore``.

        Raises:
            ConfigurationError: no such table or column, a token that no trigger can move.
            OptilockError: the user may not create triggers; nothing was changed.
        """
        guard = GuardTrigger(table, token, policy, _names(ignore), _names(columns), schema)
        operations.invoke(cls(guard))

    def reverse(self) -> DropGuardTrigger:
        return DropGuardTrigger(self.guard)

    def do(self, operations: Operations) -> None:
        triggers = _triggers(operations)
        guard = self.guard
        target = look(operations, guard.table, guard.schema, guard.token)
        guard = completed(guard, target)
        with permitted(operations, f"create triggers on {guard.table}"):
            for statement in triggers.create(guard):
                send(operations, statement)


@Operations.register_operation("drop_guard_trigger")
class DropGuardTrigger(_GuardOperation):
    """The trigger goes, if it is there."""

    verb = "drop_guard_trigger"

    @classmethod
    def drop_guard_trigger(
        cls,
        operations: Any,
        table: str,
        token: Token,
        policy: Policy,
        *,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        schema: str | None = None,
    ) -> None:
        """Stop guarding the version of a table; the arguments say what the reverse creates."""
        guard = GuardTrigger(table, token, policy, _names(ignore), _names(columns), schema)
        operations.invoke(cls(guard))

    def reverse(self) -> CreateGuardTrigger:
        return CreateGuardTrigger(self.guard)

    def do(self, operations: Operations) -> None:
        guard = self.guard
        with permitted(operations, f"drop triggers of {guard.table}"):
            for statement in _triggers(operations).drop(guard):
                send(operations, statement)


def _triggers(operations: Operations) -> GuardTriggers:
    dialect = operations.get_context().dialect
    return database_of(dialect).guard_triggers(dialect)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return names if isinstance(names, str) else tuple(names)  # type: ignore[return-value]


class _MovingOperation(VersionOperation):
    def __init__(self, table: str, token: Token, *, schema: str | None = None) -> None:
        self.table = table
        self.token = token
        self.schema = schema

    def call(self) -> Call:
        return Call(self.verb, (self.table, self.token), {"schema": self.schema})


@Operations.register_operation("create_version_trigger")
class CreateVersionTrigger(_MovingOperation):
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

    def do(self, operations: Operations) -> None:
        ddl = _ddl(operations, self)
        with permitted(operations, f"create triggers on {self.table}"):
            for statement in (*ddl.drop, *ddl.create):
                send(operations, statement)


@Operations.register_operation("drop_version_trigger")
class DropVersionTrigger(_MovingOperation):
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

    def do(self, operations: Operations) -> None:
        with permitted(operations, f"drop triggers of {self.table}"):
            for statement in _ddl(operations, self).drop:
                send(operations, statement)


def _ddl(operations: Operations, operation: _MovingOperation) -> TriggerDDL:
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
