"""The differences between databases in migrations: version triggers, and roll-outs.

One class for each, and each engine's file overrides what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError

from optilock.dialects.values import plain_ddl, quote_name, quote_table, rows_with_keys, sql_of
from optilock.errors import ConfigurationError, OptilockError
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger


class Names(NamedTuple):
    """Quoted for the database."""

    #: With its schema.
    table: str
    #: Without it.
    bare_table: str
    column: str
    trigger: str
    #: The trigger's name with the table's schema.
    qualified_trigger: str
    #: Columns that find a row, where SQLite has no ``rowid`` for it.
    keys: tuple[str, ...]


class TriggerDDL(NamedTuple):
    """Statements, in order."""

    create: tuple[str, ...]
    drop: tuple[str, ...]
    #: What the catalogue of the database keeps of the trigger: what it does, and when it fires.
    source: str
    fires: str = ""


@dataclass(frozen=True)
class Found:
    """A trigger that the database has."""

    table: str
    name: str
    #: What it does, as the database keeps it; None where the user of the connection may not see it.
    source: str | None
    #: Whether it fires.
    enabled: bool = True
    #: Whether it belongs to the partitioned table's trigger, and is made and dropped with it.
    of_parent: bool = False
    #: ``BEFORE UPDATE FOR EACH ROW``, with its columns and its condition; empty where ``source``
    #: contains it.
    fires: str = ""

    def is_made_by(self, source: str, fires: str) -> bool:
        """Return whether the trigger has this source and fires at these moments.

        Raises:
            OptilockError: the user may not see that.
        """
        return self.read().strip() == source.strip() and self.fires == fires

    def read(self) -> str:
        """Return the source of the trigger.

        Raises:
            OptilockError: the user may not see that (MariaDB, without the right TRIGGER).
        """
        if self.source is None:
            raise OptilockError(
                f"The user of this connection may not see what the trigger {self.name} of"
                f" {self.table} does, so it cannot be compared with the right one. Nothing was"
                " changed: give the user the right TRIGGER on the table, or run this as another."
            )
        return self.source


class GuardTriggers:
    """How one database guards a table."""

    #: SQL that gives the fields of ``Found``, for ``:schema``.
    catalogue: str | None = None

    def __init__(self, dialect: sa.Dialect) -> None:
        self.dialect = dialect

    #: Whether triggers fire for rows that a foreign key changes (``ON DELETE SET NULL``).
    fire_after_cascades: bool = True

    def of_version(self, names: Names) -> TriggerDDL | None:
        """The trigger that moves a version column; ``None`` where none is known."""
        return None

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        """Statements that make the trigger, also in the place of another one."""
        raise _unknown(self.dialect)

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        """Statements that drop it, if it is there."""
        raise _unknown(self.dialect)

    def source(self, guard: GuardTrigger) -> str:
        """Return the source of the trigger as the database keeps it."""
        raise _unknown(self.dialect)

    def fires(self, guard: GuardTrigger) -> str:
        """The condition under which it fires, in the form of ``Found.fires``."""
        return ""

    def found(self, connection: sa.Connection, schema: str | None) -> list[Found]:
        """Return all triggers of a schema, optilock's and others."""
        if self.catalogue is None:
            return []
        rows = connection.execute(sa.text(self.catalogue), {"schema": schema})
        return [Found(*row) for row in rows]

    def hidden(
        self, connection: sa.Connection, table: str, name: str, schema: str | None
    ) -> Found | None:
        """A trigger that is there although the catalogue does not show it to this user."""
        return None

    def unused_functions(self, connection: sa.Connection, schema: str | None) -> list[str]:
        """Return the functions of optilock that no trigger calls: their tables are dropped."""
        return []

    # -- words ---------------------------------------------------------------------------------

    def new(self, column: str) -> str:
        return f"NEW.{quote_name(self.dialect, column)}"

    def old(self, column: str) -> str:
        return f"OLD.{quote_name(self.dialect, column)}"

    def table(self, guard: GuardTrigger) -> str:
        return quote_table(self.dialect, guard.table, guard.schema)

    def trigger(self, guard: GuardTrigger) -> str:
        """The trigger's, or its function's, name with its schema."""
        return quote_table(self.dialect, guard.name, guard.schema)

    def following(self, guard: GuardTrigger) -> str:
        """SQL of the version that comes after the old one."""
        following: Any = guard.token.following(sa.literal_column("optilock_old_version"))
        # The name goes in last: the compiler would read signs in it.
        made = sql_of(self.dialect, following)
        return made.replace("optilock_old_version", self.old(guard.column))

    def refusal(self, guard: GuardTrigger) -> str:
        """The error message for a foreign writer; 128 characters, the limit of MariaDB."""
        name = guard.table if len(guard.table) < 40 else f"{guard.table[:37]}..."
        return f"optilock: this UPDATE of {name} leaves its version as it was; it has to move it"


def _unknown(dialect: sa.Dialect) -> ConfigurationError:
    return ConfigurationError(
        f"optilock knows no guard trigger for {dialect.name}: it works on PostgreSQL, MariaDB and"
        " SQLite. Leave __version_guard__ out, and let every program move the version."
    )


Key = tuple[Any, ...]
#: How many rows were filled, and the last key among them; None when there was none.
Filled = tuple[int, Key | None]


class Sending(Protocol):
    """The part of a connection that a step uses; a roll-out that is only shown has no more."""

    @property
    def dialect(self) -> sa.Dialect: ...

    def exec_driver_sql(self, sql: str, /) -> Any: ...

    def execute(self, statement: Any, given: Any = ..., /) -> Any: ...

    def scalar(self, statement: Any, given: Any = ..., /) -> Any: ...


#: What is done in one transaction.
Step = Callable[[Sending], None]


@dataclass(frozen=True)
class Target:
    """A table, its token, and what the table has of it."""

    table: sa.Table
    token: Token
    #: The version column as the database has it; None while there is none.
    column: sa.Column[Any] | None
    #: Whether the column has a default.
    has_default: bool = False

    @property
    def name(self) -> str:
        """The column's name."""
        return self.token.column_name

    @property
    def keys(self) -> tuple[sa.Column[Any], ...]:
        return tuple(self.table.primary_key.columns)

    @property
    def version(self) -> sa.Column[Any]:
        assert self.column is not None
        return self.column

    @property
    def kept(self) -> dict[sa.Column[Any], Any]:
        """The values that an UPDATE writes to keep columns that would move automatically."""
        return {
            column: column
            for column in self.table.columns
            if column.server_onupdate is not None and column is not self.column
        }

    def names(self, dialect: sa.Dialect) -> tuple[str, str]:
        """The table and the column, quoted."""
        preparer = dialect.identifier_preparer
        return preparer.format_table(self.table), preparer.quote(self.name)

    def next_keys(self, after: Key | None, size: int) -> sa.Select[Any]:
        """The keys of the next rows without a version, in the database's own order."""
        query = sa.select(*self.keys).where(self.version.is_(None))
        if after is not None:
            query = query.where(self.beyond(after))
        return query.order_by(*self.keys).limit(size)

    def among(self, keys: Sequence[Key]) -> sa.ColumnElement[bool]:
        """Rows with these keys."""
        return rows_with_keys(self.keys, keys)

    def beyond(self, key: Key) -> sa.ColumnElement[bool]:
        """Rows after ``key``. Spelled out: not every planner uses an index for row values."""
        keys = self.keys
        return sa.or_(
            *(
                sa.and_(*(keys[j] == key[j] for j in range(i)), keys[i] > key[i])
                for i in range(len(keys))
            )
        )


def step_of(*statements: str) -> Step:
    """A step that sends these."""

    def step(connection: Sending) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    return step


class Words:
    """In which words a database takes names and first versions."""

    #: In whose words SQL is written.
    speaks: sa.Dialect | None = None

    #: Whether a default that is an expression needs brackets.
    brackets = False

    #: The longest name of a column, and of what it is so many.
    longest_name: int = 1_000
    letters = "characters"

    def takes_name(self, name: str) -> bool:
        """Return whether ``name`` is short enough for a column."""
        return len(name) <= self.longest_name

    def default_of(self, token: Token) -> str | None:
        """SQL of a first version; None where only the application knows one."""
        first = token.first()
        if isinstance(first, sa.BindParameter):
            return sql_of(self.speaks or DefaultDialect(), first)
        if first is None or self.speaks is None:
            return None
        return f"({sql_of(self.speaks, first)})" if self.brackets else sql_of(self.speaks, first)

    def fills_as_it_adds(self, token: Token) -> bool:
        """Return whether ADD COLUMN gives every existing row its own version."""
        return True

    def first_of(self, token: Token) -> str:
        """SQL of a first version."""
        found = self.default_of(token)
        if found is None:
            raise ConfigurationError(
                f"{type(token).__name__}() cannot be rolled out on this database: use Counter() or"
                " Unique(), or a migration of your own."
            )
        return found


class Steps(Words):
    """The steps by which a table gets a version, and by which it loses one."""

    #: Whether a column becomes NOT NULL by rebuilding the whole table.
    makes_tables_anew = False

    def check(self, target: Target) -> None:
        """Before anything is changed: raise ``ConfigurationError`` for what cannot be done."""

    def add_column(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        """The column, nullable, and a default for the rows that come from now on."""
        raise NotImplementedError  # every engine has its own

    def set_default(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        """The default of a column that is there without; none where only a new table has it."""
        return []

    def create_trigger(self, *statements: str) -> Step:
        """The step that creates a trigger; the statements are as they are."""

        def step(connection: Sending) -> None:
            for statement in statements:
                connection.execute(plain_ddl(statement))

        return step

    def fill(
        self, connection: sa.Connection, target: Target, after: Key | None, size: int
    ) -> Filled:
        """Give the next rows after that key, ``size`` at most, a version."""
        raise NotImplementedError  # every engine locks in its own way

    def shown_fill(self, target: Target, dialect: sa.Dialect, size: int) -> Sequence[str]:
        """The statements of the first batch, to be read."""
        raise NotImplementedError  # as fill

    def require(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        """NOT NULL, and the default."""
        raise NotImplementedError  # every engine has its own

    def drop_column(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        """The column goes, with its values."""
        table, column = target.names(dialect)
        return [step_of(f"ALTER TABLE {table} DROP COLUMN {column}")]

    def undo_require(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        """Return the steps that remove the remains of a failed :meth:`require`."""
        return []

    def after_rename(
        self, connection: sa.Connection, table: str, schema: str | None, names: tuple[str, str]
    ) -> None:
        """After a column was renamed, from one of ``names`` to the other: what has the old name."""


class Transactions:
    """The transactions of these steps, and how long they wait."""

    #: Execution options of the connection that works.
    options: Mapping[str, Any] = MappingProxyType({})

    #: Whether each statement that changes a table is stored at once.
    commits_each_step = False

    def prepare(self, connection: sa.Connection) -> None:
        """Before the first transaction of the connection that works."""

    def begin(self, connection: sa.Connection, lock_timeout: float) -> None:
        """At the start of each transaction: do not wait longer than this, in seconds."""

    @contextmanager
    def waits_at_most(self, connection: sa.Connection, seconds: float) -> Iterator[bool]:
        """For the length of a migration's operation: do not wait longer for one table.

        Yield whether the wait is limited here. A limit that the application has set stays.
        """
        yield False

    def bounded(
        self, connection: sa.Connection, beside: sa.Connection | None, seconds: float
    ) -> AbstractContextManager[None]:
        """For the length of a block that changes a table: what :meth:`begin` cannot limit.

        ``beside`` is another connection that may be asked, also by a thread.
        """
        return nullcontext()

    def interrupted(self, error: DBAPIError) -> bool:
        """Return whether ``error`` ended a statement that waited for too long."""
        return False

    def begin_in_migration(self, connection: sa.Connection, table: str, *, anew: bool) -> None:
        """Prepare to change ``table``, or to rebuild it (``anew``): all steps or none."""


class Looks:
    """The tables, rows and servers that are there."""

    def nodes(self, connection: sa.Connection, named: Sequence[str]) -> Sequence[str]:
        """``host:port`` of every server that has the table, this one too; none: there is one.

        ``named`` are those that the user has named.

        Raises:
            ConfigurationError: they are not all known, or would not all make the same changes.
        """
        return ()

    def made(self, connection: sa.Connection, table: sa.Table) -> Mapping[str, object]:
        """Return this server's form of the table, for a comparison with another server's."""
        return {}

    def holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        """Return the owner of the oldest transaction on the table, if the server reports it."""
        return None

    def hides_rows(self, connection: sa.Connection, target: Target) -> bool:
        """Return whether the table may have rows that this user cannot see, and so cannot fill."""
        return False

    def current_schema(self, connection: sa.Connection) -> str | None:
        """The schema in which names without one are found at the moment."""
        return connection.dialect.default_schema_name

    def schema_of(self, connection: sa.Connection, table: str) -> str | None:
        """The schema in which a bare name is found, if that is not the current one."""
        return None

    def rows(self, connection: sa.Connection, target: Target) -> int | None:
        """About how many rows the table has; None where that would have to be counted."""
        return None

    def is_left(self, connection: sa.Connection, target: Target) -> bool:
        """Return whether a row without a version is left."""
        left = sa.select(target.keys[0]).where(target.version.is_(None)).limit(1)
        return connection.execute(left).first() is not None


class Ways(Steps, Transactions, Looks):
    """How one database is brought to have a version, in short transactions."""
