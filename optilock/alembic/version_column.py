"""The column of a token: added to a table that has rows, changed to another token, dropped.

::

    op.add_version_column("accounts", Counter())
    op.change_version_column("accounts", Counter(), Unique())
    op.drop_version_column("accounts", Unique())

Rows that are there get a first version, and so do the rows of programs that know of no version:
the column has a default in the database. The mapping has none, because SQLAlchemy takes a server
default for a sign that the database makes the versions; autogenerate knows that these belong
together. A changed token begins anew: the versions that people have seen (ETags) are good no
longer.

The difference between the databases is whether they give a default that differs from row to row to
the rows that are there: PostgreSQL and MariaDB do, in one statement; SQLite makes a new table
(:mod:`optilock.dialects.sqlite.migrations`).

For a table that is written all the time use ``op.roll_out_version_column``, which holds no lock for
longer than a moment (:mod:`optilock.alembic.roll_out`). Where the version has been rolled out, the
operation here finds the column and says so; autogenerate finds nothing to do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from alembic.operations import Operations
from sqlalchemy import Column, MetaData, Table, TextClause, literal_column, text, update

from optilock.alembic.operation import (
    Call,
    VersionOperation,
    connection_of,
    look,
    permitted,
    ways_of,
)
from optilock.dialects import database_of
from optilock.dialects.migrations import Target, Ways
from optilock.dialects.values import plain, quoted, quoted_table
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_name
from optilock.rollout.target import require_present
from optilock.tokens import Token
from optilock.tokens.guard_trigger import is_guard, read_mark, short_name


class _ColumnOperation(VersionOperation):
    def __init__(
        self, table: str, token: Token, *, fill: str | None = None, schema: str | None = None
    ) -> None:
        self.table = table
        self.token = token
        self.fill = fill
        self.schema = schema

    def call(self) -> Call:
        options = {"fill": self.fill, "schema": self.schema}
        return Call(self.verb, (self.table, self.token), options)

    def column(self, operations: Operations) -> VersionColumn:
        return VersionColumn(operations, self.table, self.schema, self.token)


@Operations.register_operation("add_version_column")
class AddVersionColumn(_ColumnOperation):
    """The column, filled and NOT NULL."""

    verb = "add_version_column"

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

    def reverse(self) -> DropVersionColumn:
        return DropVersionColumn(self.table, self.token, fill=self.fill, schema=self.schema)

    def do(self, operations: Operations) -> None:
        self.column(operations).add(self.fill)


@Operations.register_operation("drop_version_column")
class DropVersionColumn(_ColumnOperation):
    """The column goes; nobody checks the table's rows any more."""

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

    def do(self, operations: Operations) -> None:
        self.column(operations).drop()


@Operations.register_operation("change_version_column")
class ChangeVersionColumn(_ColumnOperation):
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
        super().__init__(table, old, fill=fill, schema=schema)
        self.new = new

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
        return Call("change_version_column", (self.table, self.token, self.new), options)

    def reverse(self) -> ChangeVersionColumn:
        return ChangeVersionColumn(self.table, self.new, self.token, schema=self.schema)

    def do(self, operations: Operations) -> None:
        self.column(operations).change(self.new, self.fill)


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
        """The table as the database has it; None where there is no database (``--sql``)."""
        return look(self.operations, self.table, self.schema, self.token)

    def add(self, fill: str | None) -> None:
        """The column, filled and NOT NULL."""
        self._require_first(fill)
        target = self.look()
        self._require_absent(target)
        if target is not None:
            self.ways.check(target)
        with permitted(self.operations, f"add {self.table}.{self.name}"), self._taken_back():
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
        """The column goes."""
        self._require_droppable()
        with permitted(self.operations, f"drop {self.table}.{self.name}"):
            self._drop()

    def change(self, token: Token, fill: str | None) -> None:
        """Another token in the place of this one; a column of the same type keeps its versions.

        Otherwise the new column is there and filled before the old one goes, so that nothing is
        lost where it cannot be made.
        """
        new = replace(self, token=token)
        same = fill is None and self._type() == new._type()
        if not same:
            new._require_first(fill)
        self._require_droppable()
        if self.name != new.name:
            new._require_absent(new.look())
        if same:
            with permitted(self.operations, f"change {self.table}.{self.name}"):
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
                with suppress(Exception):  # what went wrong first is what the caller has to know
                    target = self.look()
                    if target is not None and target.column is not None:
                        self._drop()
            raise

    def _rename(self, name: str) -> None:
        if self.name == name:
            return
        dialect = self.operations.get_context().dialect
        # Spelled out: alter_column() would make the table anew on SQLite, or want its type.
        self.operations.execute(
            plain(
                f"ALTER TABLE {quoted_table(dialect, self.table, self.schema)}"
                f" RENAME COLUMN {quoted(dialect, self.name)} TO {quoted(dialect, name)}"
            )
        )
        connection = connection_of(self.operations)
        if connection is not None:
            self.ways.after_rename(connection, self.table, self.schema, (self.name, name))

    def _set_default(self) -> None:
        """Another default; the versions stay, because a number must not come twice."""
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
        """NOT NULL, and the default; what is NULL gets the default first."""
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
        """The same under another name, while the old column is still there."""
        token = copy.copy(self.token)
        object.__setattr__(token, "column", short_name(f"optilock_{self.name}"))
        return replace(self, token=token)

    def _type(self) -> str:
        return self.token.type().compile(self.operations.get_context().dialect)

    # -- what is refused, before anything is changed -----------------------------------------

    def _require_droppable(self) -> None:
        """It is there, and no trigger is: every later UPDATE would fail at that one."""
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
                " anew from what it is: run the migration on the database, or use Counter()."
            )

    def _require_first(self, fill: str | None) -> None:
        if fill is None and self.ways.default_of(self.token) is None:
            raise ConfigurationError(
                f"{self.token!r} cannot make a version for the rows that {self.table} has already:"
                " say which one, as an SQL expression: fill=\"'first'\". Nothing was changed."
            )
