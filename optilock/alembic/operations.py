"""The base of optilock's operations, and the operations on triggers and on optilock's own tables.

::

    op.create_guard_trigger("pages", Counter(), "bump", ignore=["views"])
    op.create_version_trigger("items", RowVersion())
    op.create_optilock_tables("commit_tokens")
    op.upgrade_optilock_tables("commit_tokens", to=2)

A **guard trigger** handles UPDATEs by other programs that leave the version as it was. ``"bump"``
moves the version; ``"reject"`` refuses the UPDATE. It ignores UPDATEs that move the version
themselves, as all of optilock's do, UPDATEs that change only ``ignore``, and on PostgreSQL UPDATEs
under ``no_bump``. On MariaDB and SQLite a guard trigger with ``ignore`` names the columns that
count. Without ``columns=`` these are the columns that the table has at that moment. After a column
is added, create the trigger again (autogenerate does). On SQLite ``batch_alter_table`` drops it.

The **trigger of a RowVersion** is made by ``metadata.create_all()`` with the table. A migration
makes it by this operation, after the table or the column. Its SQL is
:func:`optilock._mapping.triggers.trigger_ddl`.

The **sets of tables** are those of :mod:`optilock.tables`. You can also run the migrations that
come with optilock's source (``migrations/``) beside your own.

**Locks of tables.** Every reader of a table queues behind a statement that waits for its lock. So
on PostgreSQL and MariaDB each statement waits briefly and is tried again for some time, as in a
roll-out (:mod:`optilock.alembic.waits`).

Alembic loads optilock's plug-in while it is being imported itself, so the operations do not import
``alembic.autogenerate``; :mod:`optilock.alembic.autogenerate` renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from types import FunctionType
from typing import Any, ClassVar, TypeVar

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Column, Connection, MetaData, Table, inspect
from sqlalchemy.exc import DBAPIError

from optilock._mapping.triggers import trigger_ddl
from optilock.alembic.waits import short_waits
from optilock.dialects import database_of
from optilock.dialects.migrations import GuardTriggers, Target, TriggerDDL, Ways
from optilock.dialects.values import plain_ddl
from optilock.errors import ConfigurationError, OptilockError
from optilock.rollout.target import complete_guard, require_present, target_of
from optilock.tables import table_set
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy

Kind = TypeVar("Kind", bound="type[VersionOperation]")


@dataclass(frozen=True)
class Call:
    """``op.name(arguments, options)``; options that are None or empty are omitted."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class VersionOperation(MigrateOperation):
    """An operation of optilock: it runs, is written as Python, is reversed and compared."""

    #: Its name in ``op``, and the class of the opposite operation, with the same arguments.
    verb: ClassVar[str]
    opposite: ClassVar[Any]

    def call(self) -> Call:
        """Return the call that does this operation in a migration script."""
        raise NotImplementedError

    def do(self, operations: Operations) -> None:
        """Do it, or write its SQL down."""
        raise NotImplementedError

    def reverse(self) -> Any:
        """Return the operation that undoes this one."""
        return self.opposite(**{one.name: getattr(self, one.name) for one in fields(self)})

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the tuple that ``alembic check`` and ``compare_metadata`` show."""
        call = self.call()
        return (
            call.name,
            *call.arguments,
            {n: v for n, v in call.options.items() if v is not None},
        )


def register_as(verb: str) -> Callable[[Kind], Kind]:
    """Register a class as ``op.<verb>``, with the arguments of its ``invoke`` and its docstring."""

    def register(kind: Kind) -> Kind:
        shared: Any = kind.invoke.__func__  # type: ignore[attr-defined]
        # A copy, because Alembic writes another docstring into the function.
        own = FunctionType(shared.__code__, shared.__globals__, verb, shared.__defaults__)
        own.__kwdefaults__, own.__annotations__ = shared.__kwdefaults__, shared.__annotations__
        own.__doc__ = kind.__doc__
        kind.verb = verb
        setattr(kind, verb, classmethod(own))
        Operations.register_operation(verb)(kind)
        return kind

    return register


def pair(one: type[VersionOperation], other: type[VersionOperation]) -> None:
    """Make two operations reverse each other."""
    one.opposite, other.opposite = other, one


@Operations.implementation_for(VersionOperation)
def _carry_out(operations: Operations, one: VersionOperation) -> Any:
    with short_waits(operations):
        return one.do(operations)


# -- the database that is being migrated -----------------------------------------------------------


def connection_of(operations: Operations) -> Connection | None:
    """Return the connection that is being migrated; None with ``--sql``."""
    return None if operations.get_context().as_sql else operations.get_bind()


def look_at_table(
    operations: Operations, table: str, schema: str | None, token: Token
) -> Target | None:
    """Return the table as the database has it; None with ``--sql``."""
    connection = connection_of(operations)
    return None if connection is None else target_of(connection, table, schema, token)


def ways_of(operations: Operations) -> Ways:
    """Return how a version is added on the database that is being migrated."""
    return database_of(operations.get_context().dialect).rollout()


def send(operations: Operations, statement: str) -> None:
    """Send a statement; with ``--sql`` write it for the database's own client."""
    context = operations.get_context()
    script = database_of(context.dialect).tables.as_script(statement) if context.as_sql else None
    if script is not None:
        context.impl.static_output(script)
    else:
        operations.execute(plain_ddl(statement))


@contextmanager
def explain_forbidden(operations: Operations, what: str) -> Iterator[None]:
    """Explain the error if the user of the connection has no right to do ``what``."""
    dialect = operations.get_context().dialect
    try:
        yield
    except DBAPIError as error:
        if not database_of(dialect).forbids(error):
            raise
        stays = (
            f" Earlier operations of the same revision are stored, because {dialect.name} commits"
            " each of them: undo them, or continue from here."
        )
        raise OptilockError(
            f"The user of this connection may not {what}. Nothing was changed by this operation:"
            " run the migration as the table's owner, or give the user that right."
            + (stays if ways_of(operations).commits_each_step else "")
        ) from error


# -- guard triggers --------------------------------------------------------------------------------


@dataclass(eq=False)
class _GuardOperation(VersionOperation):
    guard: GuardTrigger

    def call(self) -> Call:
        guard = self.guard
        options = {
            "ignore": list(guard.ignore) or None,
            "columns": list(guard.columns) or None,
            "schema": guard.schema,
        }
        return Call(self.verb, (guard.table, guard.token, guard.policy), options)

    @classmethod
    def invoke(
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
        # A text stays a text: GuardTrigger refuses it.
        names: Any = [one if isinstance(one, str) else tuple(one) for one in (ignore, columns)]
        operations.invoke(cls(GuardTrigger(table, token, policy, names[0], names[1], schema)))


@register_as("create_guard_trigger")
class CreateGuardTrigger(_GuardOperation):
    """Guard the version of a table; a guard trigger that is there already is replaced.

    Args:
        policy: ``"bump"`` or ``"reject"``.
        ignore: columns whose change does not count.
        columns: the columns whose change counts; needed for ``--sql``, and only beside ``ignore``.

    Raises:
        ConfigurationError: no such table or column, a token that no trigger can move.
        OptilockError: the user may not create triggers; nothing was changed.
    """

    def do(self, operations: Operations) -> None:
        triggers, guard = _triggers(operations), self.guard
        guard = complete_guard(
            guard, look_at_table(operations, guard.table, guard.schema, guard.token)
        )
        with explain_forbidden(operations, f"create triggers on {guard.table}"):
            for statement in triggers.create(guard):
                send(operations, statement)


@register_as("drop_guard_trigger")
class DropGuardTrigger(_GuardOperation):
    """Drop the guard trigger of a table, if it is there; its arguments are for the reverse."""

    def do(self, operations: Operations) -> None:
        with explain_forbidden(operations, f"drop triggers of {self.guard.table}"):
            for statement in _triggers(operations).drop(self.guard):
                send(operations, statement)


pair(CreateGuardTrigger, DropGuardTrigger)


def _triggers(operations: Operations) -> GuardTriggers:
    dialect = operations.get_context().dialect
    return database_of(dialect).guard_triggers(dialect)


# -- triggers that move a RowVersion ---------------------------------------------------------------


@dataclass(eq=False)
class TableOperation(VersionOperation):
    """An operation on the version of one table."""

    table: str
    token: Token
    _: KW_ONLY
    schema: str | None = None

    def call(self) -> Call:
        return Call(self.verb, (self.table, self.token), {"schema": self.schema})

    @classmethod
    def invoke(
        cls, operations: Any, table: str, token: Token, *, schema: str | None = None
    ) -> None:
        operations.invoke(cls(table, token, schema=schema))


@register_as("create_version_trigger")
class CreateVersionTrigger(TableOperation):
    """Let the database move the version of a table; a trigger that is there is replaced.

    Raises:
        ConfigurationError: no such table or column, or a token that needs no trigger.
        OptilockError: the user may not create triggers; nothing was changed.
    """

    def do(self, operations: Operations) -> None:
        ddl = _ddl(operations, self)
        with explain_forbidden(operations, f"create triggers on {self.table}"):
            for statement in (*ddl.drop, *ddl.create):
                send(operations, statement)


@register_as("drop_version_trigger")
class DropVersionTrigger(TableOperation):
    """Drop the trigger that moves the version of a table, if it is there."""

    def do(self, operations: Operations) -> None:
        with explain_forbidden(operations, f"drop triggers of {self.table}"):
            for statement in _ddl(operations, self).drop:
                send(operations, statement)


pair(CreateVersionTrigger, DropVersionTrigger)


def _ddl(operations: Operations, operation: TableOperation) -> TriggerDDL:
    token, name, schema = operation.token, operation.table, operation.schema
    if not token.has_trigger:
        raise ConfigurationError(
            f"{token!r} is not moved by a trigger; RowVersion() is. For a trigger that moves what"
            " a foreign UPDATE left alone write op.create_guard_trigger."
        )
    dialect = operations.get_context().dialect
    target = look_at_table(operations, name, schema, token)
    if target is not None:
        require_present(target, name)
        return trigger_ddl(target.table, target.version, dialect)
    table = Table(name, MetaData(), Column(token.column_name, token.type()), schema=schema)
    return trigger_ddl(table, table.columns[token.column_name], dialect)


# -- optilock's own tables -------------------------------------------------------------------------


@dataclass(eq=False)
class _SetOperation(VersionOperation):
    name: str
    revision: int
    _: KW_ONLY
    schema: str | None = None
    table: str | None = None
    #: The first revision that may be named, and the argument that names it.
    least: ClassVar[int] = 1
    argument: ClassVar[str] = "revision"

    def __post_init__(self) -> None:
        found = self.tables = table_set(self.name, self.table)
        given, least = self.revision, self.least
        if not isinstance(given, int) or not least <= given <= found.revision:
            raise ConfigurationError(
                f"{self.name} has no revision {given!r}: it goes from {least} to {found.revision}"
                " in this version of optilock."
            )

    def call(self) -> Call:
        shown = None if (self.argument, self.revision) == ("revision", 1) else self.revision
        options = {self.argument: shown, "schema": self.schema, "table": self.table}
        return Call(self.verb, (self.name,), options)

    @classmethod
    def invoke(
        cls,
        operations: Any,
        name: str,
        *,
        revision: int = 1,
        schema: str | None = None,
        table: str | None = None,
    ) -> None:
        operations.invoke(cls(name, revision, schema=schema, table=table))


@register_as("create_optilock_tables")
class CreateOptilockTables(_SetOperation):
    """Create the tables of a set, as they were at ``revision``.

    Args:
        table: the tables' name, for a set whose tables can be named.

    Raises:
        ConfigurationError: no such set or revision, or its tables are there already.
        OptilockError: the user may not create tables.
    """

    def do(self, operations: Operations) -> None:
        self._require_absent(operations)
        with explain_forbidden(operations, f"create the tables of {self.name}"):
            for step in self.tables.steps[: self.revision]:
                step.upgrade(operations, self.schema)

    def _require_absent(self, operations: Operations) -> None:
        connection = connection_of(operations)
        if connection is None:
            return
        inspector = inspect(connection)
        for name in self.tables.table_names():
            if inspector.has_table(name, schema=self.schema):
                raise ConfigurationError(
                    f"The table {name} of {self.name} is there already. Nothing was changed: stamp"
                    " the revision, or create the set in one place only."
                )


@register_as("drop_optilock_tables")
class DropOptilockTables(_SetOperation):
    """Drop the tables of a set, which are at ``revision``, with their rows."""

    def do(self, operations: Operations) -> None:
        with explain_forbidden(operations, f"drop the tables of {self.name}"):
            for step in reversed(self.tables.steps[: self.revision]):
                step.downgrade(operations, self.schema)


pair(CreateOptilockTables, DropOptilockTables)


@dataclass(eq=False)
class _StepOperation(_SetOperation):
    """One step between two revisions of a set; ``revision`` is the one that it leads to."""

    least, argument = 0, "to"
    #: The difference to the revision of the reverse.
    back: ClassVar[int]

    def reverse(self) -> Any:
        revision = self.revision + self.back
        return self.opposite(self.name, revision, schema=self.schema, table=self.table)

    @classmethod
    def invoke(  # type: ignore[override]
        cls,
        operations: Any,
        name: str,
        *,
        to: int,
        schema: str | None = None,
        table: str | None = None,
    ) -> None:
        operations.invoke(cls(name, to, schema=schema, table=table))


@register_as("upgrade_optilock_tables")
class UpgradeOptilockTables(_StepOperation):
    """Change the tables of a set from the revision before ``to`` to it."""

    back = -1

    def do(self, operations: Operations) -> None:
        if self.revision == 0:
            raise ConfigurationError("Nothing leads up to revision 0: drop the tables instead.")
        with explain_forbidden(operations, f"change the tables of {self.name}"):
            self.tables.steps[self.revision - 1].upgrade(operations, self.schema)


@register_as("downgrade_optilock_tables")
class DowngradeOptilockTables(_StepOperation):
    """Change the tables of a set from the revision after ``to`` back to it."""

    back = 1

    def do(self, operations: Operations) -> None:
        if self.revision == self.tables.revision:
            raise ConfigurationError(
                f"{self.name}: revision {self.revision} is the newest; nothing leads back to it."
            )
        with explain_forbidden(operations, f"change the tables of {self.name}"):
            self.tables.steps[self.revision].downgrade(operations, self.schema)


pair(UpgradeOptilockTables, DowngradeOptilockTables)
