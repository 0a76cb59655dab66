"""What all operations of optilock have: they can be written as Python, taken back, and compared.

Alembic loads optilock's plug-in while it is being imported itself. Therefore the operations import
nothing of ``alembic.autogenerate``; what writes them down (:mod:`optilock.alembic.autogenerate`)
comes in later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.dialects import database_of
from optilock.dialects.migrations import Target, Ways
from optilock.dialects.values import plain
from optilock.errors import OptilockError
from optilock.rollout.target import target_of
from optilock.tokens import Token


@dataclass(frozen=True)
class Call:
    """``op.name(arguments, options)``; options that are None or empty are left out."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


class VersionOperation(MigrateOperation):
    """An operation of optilock."""

    #: Its name in ``op``.
    verb: str

    def call(self) -> Call:
        """The call that does this operation in a migration script."""
        raise NotImplementedError  # every operation says its own

    def do(self, operations: Operations) -> None:
        """Do it, or write its SQL down."""
        raise NotImplementedError  # every operation in its own way

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """What ``alembic check`` and ``compare_metadata`` show."""
        call = self.call()
        given = {name: value for name, value in call.options.items() if value is not None}
        return (call.name, *call.arguments, given)


@Operations.implementation_for(VersionOperation)
def _do(operations: Operations, operation: VersionOperation) -> None:
    operation.do(operations)


def connection_of(operations: Operations) -> Connection | None:
    """The connection that is being migrated; None where SQL is only written down."""
    return None if operations.get_context().as_sql else operations.get_bind()


def look(operations: Operations, table: str, schema: str | None, token: Token) -> Target | None:
    """The table as the database has it; None where there is no database (``--sql``)."""
    connection = connection_of(operations)
    return None if connection is None else target_of(connection, table, schema, token)


def ways_of(operations: Operations) -> Ways:
    """How a version comes into the database that is being migrated."""
    return database_of(operations.get_context().dialect).rollout()


def send(operations: Operations, statement: str) -> None:
    """Send it; with ``--sql`` as the database's own client wants to read it."""
    context = operations.get_context()
    script = database_of(context.dialect).as_script(statement) if context.as_sql else None
    if script is not None:
        context.impl.static_output(script)
    else:
        operations.execute(plain(statement))


@contextmanager
def permitted(operations: Operations, what: str) -> Iterator[None]:
    """Say in words that the user of the connection may not do that."""
    dialect = operations.get_context().dialect
    try:
        yield
    except DBAPIError as error:
        if not database_of(dialect).forbids(error):
            raise
        stays = (
            " What operations before it in the same revision have done is stored, because"
            f" {dialect.name} commits each of them: take it back, or go on from here."
        )
        raise OptilockError(
            f"The user of this connection may not {what}. Nothing was changed by this operation:"
            " run the migration as the table's owner, or give the user that right."
            + (stays if ways_of(operations).commits_each_step else "")
        ) from error
