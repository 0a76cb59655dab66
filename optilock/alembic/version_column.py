"""The column of a token: added to a table that has rows, changed to another token, dropped.

::

    op.add_version_column("accounts", Counter())
    op.change_version_column("accounts", Counter(), Unique())
    op.drop_version_column("accounts", Unique())

Existing rows get a first version, and so do rows that programs without optilock insert: the column
has a default in the database, as ``create_all()`` gives it
(:mod:`optilock._mapping.first_versions`). The mapping has none; autogenerate treats the two as
equal. Changing the token starts new versions: clients' earlier versions (ETags) are no longer
valid.

PostgreSQL and MariaDB give existing rows a default that differs from row to row, in one statement.
SQLite makes a new table (:mod:`optilock.dialects.sqlite.migrations`).

For a table that is written all the time use ``op.roll_out_version_column``, which holds each lock
only for a moment (:mod:`optilock.alembic.roll_out`). After a roll-out, ``op.add_version_column``
refuses the existing column, and autogenerate finds no difference.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from alembic.operations import Operations
from sqlalchemy import Column, MetaData, Table, TextClause, literal_column, text, update

from optilock._mapping.triggers import trigger_name
from optilock.alembic.operations import (
    Call,
    TableOperation,
    connection_of,
    explain_forbidden,
    look_at_table,
    pair,
    register_as,
    ways_of,
)
from optilock.dialects import database_of
from optilock.dialects.migrations import Target, Ways
from optilock.dialects.values import plain_ddl, quote_name, quote_table
from optilock.errors import ConfigurationError
from optilock.rollout.target import require_present
from optilock.tokens import Token
from optilock.tokens.guard_trigger import is_guard, read_mark, short_name


@dataclass(frozen=True)
class VersionColumn:
    """The column of ``token`` on one table, online and as text."""

    operations: Operations
    table: str
    schema: str | None
    token: Token

    def __post_init__(self) -> None:
        token: object = self.token
        if not isinstance(token, Token) or token.is_system:
            raise ConfigurationError(
                f"{token!r} has no column: name a token that has, for example Counter() or"
                " Unique()."
            )

    @property
    def name(self) -> str:
        return self.token.column_name

    @property
    def ways(self) -> Ways:
        return ways_of(self.operations)

    def look(self) -> Target | None:
        """Return the table as the database has it; None with ``--sql``."""
        return look_at_table(self.operations, self.table, self.schema, self.token)

    def add(self, fill: str | None) -> None:
        """Add the column, filled and NOT NULL."""
        self._require_first(fill)
        target = self.look()
        self._require_absent(target)
        if target is not None:
            self.ways.check(target)
        with (
            explain_forbidden(self.operations, f"add {self.table}.{self.name}"),
            self._taken_back(),
        ):
            self._begin(fill)
            if fill is None and self.ways.fills_as_it_adds(self.token):
                self._add(nullable=False)
            else:
                self._require_connection()
                self._add(nullable=True)
                if fill is not None:  # or closing does it
                    stay = [] if target is None else [column.name for column in target.kept]
                    named = self._named(Column(self.name, self.token.type()), *map(Column, stay))
                    values = {self.name: literal_column(fill), **{n: named.c[n] for n in stay}}
                    self.operations.execute(update(named).values(values))
                self._close()

    def drop(self) -> None:
        """Drop the column."""
        self._require_droppable()
        with explain_forbidden(self.operations, f"drop {self.table}.{self.name}"):
            self._drop()

    def change(self, token: Token, fill: str | None) -> None:
        """Replace the token by another one; a column of the same type keeps its versions.

        Otherwise the new column is added and filled before the old one is dropped, so no version is
        lost if that fails.
        """
        new = replace(self, token=token)
        same = fill is None and self._type() == new._type()
        if not same:
            new._require_first(fill)
        self._require_droppable()
        if self.name != new.name:
            new._require_absent(new.look())
        if same:
            with explain_forbidden(self.operations, f"change {self.table}.{self.name}"):
                new._begin(None)
                self._rename(new.name)
                if type(self.token) is not type(token):
                    new._set_default()
            return
        added = new._beside() if self.name == new.name else new
        new._begin(fill)
        added.add(fill)
        with added._taken_back():
            self.drop()
        added._rename(new.name)

    # -- steps -------------------------------------------------------------------------------

    def _begin(self, fill: str | None) -> None:
        connection, ways = connection_of(self.operations), self.ways
        if connection is not None:
            at_once = fill is None and ways.fills_as_it_adds(self.token)
            anew = ways.makes_tables_anew and not at_once
            ways.begin_in_migration(connection, self.table, anew=anew)

    def _add(self, *, nullable: bool) -> None:
        kind, default = self.token.type(), None if nullable else self._default()
        column = Column(self.name, kind, nullable=nullable, server_default=default)
        self.operations.add_column(self.table, column, schema=self.schema)

    def _drop(self) -> None:
        self.operations.drop_column(self.table, self.name, schema=self.schema)

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Drop the column again if a later step fails and the database has stored the first."""
        try:
            yield
        except BaseException:
            if connection_of(self.operations) is not None and self.ways.commits_each_step:
                with suppress(Exception):  # the caller needs the first error
                    target = self.look()
                    if target is not None and target.column is not None:
                        self._drop()
            raise

    def _rename(self, name: str) -> None:
        if self.name == name:
            return
        dialect = self.operations.get_context().dialect
        # As SQL: alter_column() would make a new table on SQLite, or need the column's type.
        self.operations.execute(
            plain_ddl(
                f"ALTER TABLE {quote_table(dialect, self.table, self.schema)}"
                f" RENAME COLUMN {quote_name(dialect, self.name)} TO {quote_name(dialect, name)}"
            )
        )
        connection = connection_of(self.operations)
        if connection is not None:
            self.ways.after_rename(connection, self.table, self.schema, (self.name, name))

    def _set_default(self) -> None:
        """Set another default; the versions stay, because a number must not be used twice."""
        if not self.ways.makes_tables_anew:
            self._alter(existing_nullable=False)
            return
        beside = self._beside()
        beside._add(nullable=False)
        named = self._named(Column(self.name), Column(beside.name))
        self.operations.execute(update(named).values({beside.name: named.c[self.name]}))
        self._drop()
        beside._rename(self.name)

    def _close(self) -> None:
        """Make the column NOT NULL with its default, which NULLs get first."""
        target = self.look()
        if target is None or not self.ways.makes_tables_anew:
            self._alter(nullable=False)
            return
        for step in self.ways.require(target, self.operations.get_context().dialect):
            step(self.operations.get_bind())

    def _alter(self, **options: Any) -> None:
        default = self._default()
        self.operations.alter_column(
            self.table,
            self.name,
            existing_type=self.token.type(),
            server_default=False if default is None else default,
            schema=self.schema,
            **options,
        )

    def _default(self) -> TextClause | None:
        default = self.ways.default_of(self.token)
        return None if default is None else text(default)

    def _named(self, *columns: Column[Any]) -> Table:
        return Table(self.table, MetaData(), *columns, schema=self.schema)

    def _beside(self) -> VersionColumn:
        """Return the same column under another name, while the old column is still there."""
        token = copy.copy(self.token)
        object.__setattr__(token, "column", short_name(f"optilock_{self.name}"))
        return replace(self, token=token)

    def _type(self) -> str:
        return self.token.type().compile(self.operations.get_context().dialect)

    # -- refusals, before anything is changed ------------------------------------------------

    def _require_droppable(self) -> None:
        """Require the column, without a trigger on it: later UPDATEs would fail at that trigger."""
        require_present(self.look(), self.table)
        connection = connection_of(self.operations)
        if connection is None:
            return
        triggers = database_of(connection.dialect).guard_triggers(connection.dialect)
        for found in triggers.found(connection, self.schema):
            if found.table != self.table:
                continue
            if found.name == trigger_name(self.table, self.name):
                raise ConfigurationError(
                    f"A trigger moves {self.table}.{self.name}, and without the column every"
                    " UPDATE would fail. Nothing was changed: drop it first, with"
                    " op.drop_version_trigger."
                )
            guard = is_guard(found.name) and read_mark(found.read(), self.table, self.schema)
            if guard and guard.column == self.name:
                raise ConfigurationError(
                    f"A guard trigger stands on {self.table}.{self.name}. Nothing was changed:"
                    " drop it first, with op.drop_guard_trigger."
                )

    def _require_absent(self, target: Target | None) -> None:
        if target is not None and target.column is not None:
            raise ConfigurationError(
                f"{self.table}.{self.name} exists already and is {target.column.type!r}. Nothing"
                " was changed. If a roll-out has made it, this operation has nothing to do: remove"
                " it from the script, or stamp the revision."
            )

    def _require_connection(self) -> None:
        if self.ways.makes_tables_anew and connection_of(self.operations) is None:
            raise ConfigurationError(
                f"{self.token!r} cannot be added to {self.table} as text (--sql) on"
                f" {self.operations.get_context().dialect.name}, where the table has to be made"
                " again from the stored one: run the migration on the database, or use Counter()."
            )

    def _require_first(self, fill: str | None) -> None:
        if fill is None and self.ways.default_of(self.token) is None:
            raise ConfigurationError(
                f"{self.token!r} cannot make a version for the rows that {self.table} has already:"
                " say which one, as an SQL expression: fill=\"'first'\". Nothing was changed."
            )


# -- the operations --------------------------------------------------------------------------------


@dataclass(eq=False)
class _ColumnOperation(TableOperation):
    #: A SQL expression for the first version of the rows that are there.
    fill: str | None = field(default=None, kw_only=True)

    def call(self) -> Call:
        options = {"fill": self.fill, "schema": self.schema}
        return Call(self.verb, (self.table, self.token), options)

    def column(self, operations: Operations) -> VersionColumn:
        return VersionColumn(operations, self.table, self.schema, self.token)


@register_as("add_version_column")
class AddVersionColumn(_ColumnOperation):
    """Give a table the column of ``token``, filled and NOT NULL.

    Args:
        fill: a SQL expression for the version of rows that are there; needed for tokens that
            cannot make one.

    Raises:
        ConfigurationError: no such table, no primary key, a column of that name; nothing was
            changed.
        OptilockError: the user may not change the table.
    """

    @classmethod
    def invoke(
        cls,
        operations: Any,
        table: str,
        token: Token,
        *,
        fill: str | None = None,
        schema: str | None = None,
    ) -> None:
        operations.invoke(cls(table, token, fill=fill, schema=schema))

    def do(self, operations: Operations) -> None:
        self.column(operations).add(self.fill)


@register_as("drop_version_column")
class DropVersionColumn(_ColumnOperation):
    """Take the column of ``token`` from a table: its rows are not checked any more.

    Raises:
        ConfigurationError: no such table, no such column, one of another type.
    """

    def call(self) -> Call:
        return Call(self.verb, (self.table, self.token), {"schema": self.schema})

    def do(self, operations: Operations) -> None:
        self.column(operations).drop()


pair(AddVersionColumn, DropVersionColumn)


@register_as("change_version_column")
@dataclass(eq=False)
class ChangeVersionColumn(_ColumnOperation):
    """Replace the column of ``old`` by that of ``new``; every row gets a new first version.

    A column of the same type keeps its versions, and gets the name and the default of ``new``.
    Otherwise ``fill`` may be the first version of each row, also computed from the old one.

    Raises:
        ConfigurationError: as for ``add_version_column`` and ``drop_version_column``; nothing was
            changed.
    """

    new: Token

    @classmethod
    def invoke(  # type: ignore[override]
        cls,
        operations: Any,
        table: str,
        old: Token,
        new: Token,
        *,
        fill: str | None = None,
        schema: str | None = None,
    ) -> None:
        operations.invoke(cls(table, old, new, fill=fill, schema=schema))

    def call(self) -> Call:
        options = {"fill": self.fill, "schema": self.schema}
        return Call(self.verb, (self.table, self.token, self.new), options)

    def reverse(self) -> ChangeVersionColumn:
        return ChangeVersionColumn(self.table, self.new, self.token, schema=self.schema)

    def do(self, operations: Operations) -> None:
        self.column(operations).change(self.new, self.fill)
