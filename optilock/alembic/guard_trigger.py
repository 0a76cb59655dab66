"""The guard trigger of a table: no foreign UPDATE changes a row behind optilock's back.

::

    op.create_guard_trigger("pages", Counter(), "bump", ignore=["views"])
    op.drop_guard_trigger("pages", Counter(), "bump", ignore=["views"])

``"bump"`` moves a version that an UPDATE left alone; ``"reject"`` refuses that UPDATE. Let alone
are UPDATEs that move the version themselves, as all of optilock's do, those that change nothing but
``ignore``, and on PostgreSQL those under ``no_bump``.

On MariaDB and SQLite a trigger with ``ignore`` names the columns that count. Without ``columns=``
those are taken which the table has at that moment; a column that is added later has to be told to
it by making it anew, which autogenerate does. On SQLite ``batch_alter_table`` drops the trigger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from alembic.operations import Operations

from optilock.alembic.columns import look, permitted
from optilock.alembic.operation import Call, VersionOperation
from optilock.dialects import database_of
from optilock.dialects.quoting import plain
from optilock.dialects.triggers import GuardTriggers
from optilock.rollout.target import completed
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy

__all__ = ["CreateGuardTrigger", "DropGuardTrigger"]


class _GuardOperation(VersionOperation):
    verb: str

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
            columns: those whose change does; needed for ``--sql`` on MariaDB and SQLite, and only
                beside ``ignore``.

        Raises:
            ConfigurationError: no such table or column, a token that no trigger can move.
            OptilockError: the user may not create triggers; nothing was changed.
        """
        guard = GuardTrigger(table, token, policy, _names(ignore), _names(columns), schema)
        operations.invoke(cls(guard))

    def reverse(self) -> DropGuardTrigger:
        return DropGuardTrigger(self.guard)


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


@Operations.implementation_for(CreateGuardTrigger)
def _create(operations: Operations, operation: CreateGuardTrigger) -> None:
    triggers = _triggers(operations)
    guard = operation.guard
    target = look(operations, guard.table, guard.schema, guard.token)
    guard = completed(guard, target, triggers)
    with permitted(operations, f"create triggers on {guard.table}"):
        for statement in triggers.create(guard):
            run(operations, statement)


@Operations.implementation_for(DropGuardTrigger)
def _drop(operations: Operations, operation: DropGuardTrigger) -> None:
    guard = operation.guard
    with permitted(operations, f"drop triggers of {guard.table}"):
        for statement in _triggers(operations).drop(guard):
            run(operations, statement)


def run(operations: Operations, statement: str) -> None:
    """Send it; with ``--sql`` as the database's own client wants to read it."""
    context = operations.get_context()
    script = database_of(context.dialect).as_script(statement) if context.as_sql else None
    if script is not None:
        context.impl.static_output(script)
    else:
        operations.execute(plain(statement))


def _triggers(operations: Operations) -> GuardTriggers:
    dialect = operations.get_context().dialect
    return database_of(dialect).guard_triggers(dialect)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return names if isinstance(names, str) else tuple(names)  # type: ignore[return-value]
