"""The column of a token: added to a table that has rows, changed to another token, dropped.

::

    op.add_version_column("accounts", Counter())
    op.change_version_column("accounts", Counter(), Unique())
    op.drop_version_column("accounts", Unique())

Rows that are there get a first version, and so do the rows of programs that know of no version:
the column has a default in the database. The mapping has none, because SQLAlchemy takes a server
default for a sign that the database makes the versions; autogenerate knows that these belong
together.

A changed token begins anew: the versions that people have seen (ETags) are good no longer.

For a table that is written all the time use ``op.roll_out_version_column``, which holds no lock for
longer than a moment (:mod:`optilock.alembic.roll_out`). Where the version has been rolled out, the
operation here finds the column and says so; autogenerate finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from alembic.operations import Operations

from optilock.alembic.columns import add_column, change_column, drop_column
from optilock.alembic.operation import Call, VersionOperation
from optilock.tokens import Token

__all__ = ["AddVersionColumn", "ChangeVersionColumn", "DropVersionColumn"]


@Operations.register_operation("add_version_column")
class AddVersionColumn(VersionOperation):
    """The column, filled and NOT NULL."""

    def __init__(
        self, table: str, token: Token, *, fill: str | None = None, schema: str | None = None
    ) -> None:
        self.table = table
        self.token = token
        self.fill = fill
        self.schema = schema

    @classmethod
    def add_version_column(
        cls,
        operations: Any,
        table: str,
        token: Token,
        *,
        fill: str | None = None,
        schema: str | None = None,
    ) -> None:
        """Give a table the column of ``token``; rows that are there get a first version.

        Args:
            fill: an SQL expression for their version; needed for tokens that cannot make one.

        Raises:
            ConfigurationError: no such table, no primary key, a column of that name; nothing was
                changed.
            OptilockError: the user may not change the table.
        """
        operations.invoke(cls(table, token, fill=fill, schema=schema))

    def call(self) -> Call:
        options = {"fill": self.fill, "schema": self.schema}
        return Call("add_version_column", (self.table, self.token), options)

    def reverse(self) -> DropVersionColumn:
        return DropVersionColumn(self.table, self.token, fill=self.fill, schema=self.schema)


@Operations.register_operation("drop_version_column")
class DropVersionColumn(VersionOperation):
    """The column goes; nobody checks the table's rows any more."""

    def __init__(
        self, table: str, token: Token, *, fill: str | None = None, schema: str | None = None
    ) -> None:
        self.table = table
        self.token = token
        self.fill = fill
        self.schema = schema

    @classmethod
    def drop_version_column(
        cls, operations: Any, table: str, token: Token, *, schema: str | None = None
    ) -> None:
        """Take the column of ``token`` from a table.

        Raises:
            ConfigurationError: no such table, no such column, one of another type.
        """
        operations.invoke(cls(table, token, schema=schema))

    def call(self) -> Call:
        return Call("drop_version_column", (self.table, self.token), {"schema": self.schema})

    def reverse(self) -> AddVersionColumn:
        return AddVersionColumn(self.table, self.token, fill=self.fill, schema=self.schema)


@Operations.register_operation("change_version_column")
class ChangeVersionColumn(VersionOperation):
    """The column of one token becomes that of another."""

    def __init__(
        self,
        table: str,
        old: Token,
        new: Token,
        *,
        fill: str | None = None,
        schema: str | None = None,
    ) -> None:
        self.table = table
        self.old = old
        self.new = new
        self.fill = fill
        self.schema = schema

    @classmethod
    def change_version_column(
        cls,
        operations: Any,
        table: str,
        old: Token,
        new: Token,
        *,
        fill: str | None = None,
        schema: str | None = None,
    ) -> None:
        """Replace the column of ``old`` by that of ``new``; every row gets a new first version.

        A column of the same type keeps its versions, and gets the name and the default of ``new``.
        Otherwise ``fill`` may say the first version of each row, also from the old one.

        Raises:
            ConfigurationError: as for ``add_version_column`` and ``drop_version_column``; nothing
                was changed.
        """
        operations.invoke(cls(table, old, new, fill=fill, schema=schema))

    def call(self) -> Call:
        options = {"fill": self.fill, "schema": self.schema}
        return Call("change_version_column", (self.table, self.old, self.new), options)

    def reverse(self) -> ChangeVersionColumn:
        return ChangeVersionColumn(self.table, self.new, self.old, schema=self.schema)


@Operations.implementation_for(AddVersionColumn)
def _add(operations: Operations, operation: AddVersionColumn) -> None:
    add_column(operations, operation.table, operation.schema, operation.token, operation.fill)


@Operations.implementation_for(DropVersionColumn)
def _drop(operations: Operations, operation: DropVersionColumn) -> None:
    drop_column(operations, operation.table, operation.schema, operation.token)


@Operations.implementation_for(ChangeVersionColumn)
def _change(operations: Operations, operation: ChangeVersionColumn) -> None:
    change_column(
        operations,
        operation.table,
        operation.schema,
        operation.old,
        operation.new,
        operation.fill,
    )
