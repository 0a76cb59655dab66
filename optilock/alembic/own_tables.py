"""optilock's own tables: created, led from revision to revision, and dropped.

::

    op.create_optilock_tables("commit_tokens")
    op.upgrade_optilock_tables("commit_tokens", to=2)
    op.downgrade_optilock_tables("commit_tokens", to=1)
    op.drop_optilock_tables("commit_tokens")

Or let the migrations that come with optilock's source do it (``migrations/``), beside your own. The
sets are those of :mod:`optilock.tables`.
"""

from __future__ import annotations

from typing import Any

from alembic.operations import Operations
from sqlalchemy import inspect

from optilock.alembic.operation import Call, VersionOperation, connection_of, permitted
from optilock.errors import ConfigurationError
from optilock.tables import TableSet, table_set


class _SetOperation(VersionOperation):
    says = "revision"

    def __init__(
        self, name: str, revision: int, *, schema: str | None = None, table: str | None = None
    ) -> None:
        self.name = name
        self.revision = revision
        self.schema = schema
        self.table = table
        self.tables = _checked(name, revision, table, least=0 if self.says == "to" else 1)

    def call(self) -> Call:
        shown = self.revision if self.says == "to" or self.revision != 1 else None
        options = {self.says: shown, "schema": self.schema, "table": self.table}
        return Call(self.verb, (self.name,), options)


@Operations.register_operation("create_optilock_tables")
class CreateOptilockTables(_SetOperation):
    """From nothing to a revision."""

    verb = "create_optilock_tables"

    @classmethod
    def create_optilock_tables(
        cls,
        operations: Any,
        name: str,
        *,
        revision: int = 1,
        schema: str | None = None,
        table: str | None = None,
    ) -> None:
        """Create the tables of a set, as they were at ``revision``.

        ``table`` is what they are called, in a set whose tables may be named.

        Raises:
            ConfigurationError: no such set or revision, or its tables are there already.
            OptilockError: the user may not create tables.
        """
        operations.invoke(cls(name, revision, schema=schema, table=table))

    def reverse(self) -> DropOptilockTables:
        return DropOptilockTables(self.name, self.revision, schema=self.schema, table=self.table)

    def do(self, operations: Operations) -> None:
        self._require_absent(operations)
        with permitted(operations, f"create the tables of {self.name}"):
            for step in self.tables.steps[: self.revision]:
                step.upgrade(operations, self.schema)

    def _require_absent(self, operations: Operations) -> None:
        connection = connection_of(operations)
        if connection is None:
            return
        seen = inspect(connection)
        for name in self.tables.table_names():
            if seen.has_table(name, schema=self.schema):
                raise ConfigurationError(
                    f"The table {name} of {self.name} is there already. Nothing was changed: stamp"
                    " the revision, or create the set in one place only."
                )


@Operations.register_operation("drop_optilock_tables")
class DropOptilockTables(_SetOperation):
    """From a revision to nothing; what the tables hold is lost."""

    verb = "drop_optilock_tables"

    @classmethod
    def drop_optilock_tables(
        cls,
        operations: Any,
        name: str,
        *,
        revision: int = 1,
        schema: str | None = None,
        table: str | None = None,
    ) -> None:
        """Drop the tables of a set, which are at ``revision``, with what they hold."""
        operations.invoke(cls(name, revision, schema=schema, table=table))

    def reverse(self) -> CreateOptilockTables:
        return CreateOptilockTables(self.name, self.revision, schema=self.schema, table=self.table)

    def do(self, operations: Operations) -> None:
        with permitted(operations, f"drop the tables of {self.name}"):
            for step in reversed(self.tables.steps[: self.revision]):
                step.downgrade(operations, self.schema)


@Operations.register_operation("upgrade_optilock_tables")
class UpgradeOptilockTables(_SetOperation):
    """One revision further."""

    verb, says = "upgrade_optilock_tables", "to"

    @classmethod
    def upgrade_optilock_tables(
        cls,
        operations: Any,
        name: str,
        *,
        to: int,
        schema: str | None = None,
        table: str | None = None,
    ) -> None:
        """Lead the tables of a set from the revision before ``to`` to it."""
        operations.invoke(cls(name, to, schema=schema, table=table))

    def reverse(self) -> DowngradeOptilockTables:
        return DowngradeOptilockTables(
            self.name, self.revision - 1, schema=self.schema, table=self.table
        )

    def do(self, operations: Operations) -> None:
        if self.revision == 0:
            raise ConfigurationError("Nothing leads up to revision 0: drop the tables instead.")
        with permitted(operations, f"change the tables of {self.name}"):
            self.tables.steps[self.revision - 1].upgrade(operations, self.schema)


@Operations.register_operation("downgrade_optilock_tables")
class DowngradeOptilockTables(_SetOperation):
    """One revision back."""

    verb, says = "downgrade_optilock_tables", "to"

    @classmethod
    def downgrade_optilock_tables(
        cls,
        operations: Any,
        name: str,
        *,
        to: int,
        schema: str | None = None,
        table: str | None = None,
    ) -> None:
        """Lead the tables of a set from the revision after ``to`` back to it."""
        operations.invoke(cls(name, to, schema=schema, table=table))

    def reverse(self) -> UpgradeOptilockTables:
        return UpgradeOptilockTables(
            self.name, self.revision + 1, schema=self.schema, table=self.table
        )

    def do(self, operations: Operations) -> None:
        if self.revision == self.tables.revision:
            raise ConfigurationError(
                f"{self.name}: revision {self.revision} is the newest; nothing leads back to it."
            )
        with permitted(operations, f"change the tables of {self.name}"):
            self.tables.steps[self.revision].downgrade(operations, self.schema)


def _checked(name: str, revision: int, table: str | None, *, least: int) -> TableSet:
    found = table_set(name, table)
    if not isinstance(revision, int) or not least <= revision <= found.revision:
        raise ConfigurationError(
            f"{name} has no revision {revision!r}: it goes from {least} to {found.revision} in this"
            " version of optilock."
        )
    return found
