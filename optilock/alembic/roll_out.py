"""A version for a table that others are writing, as an operation of a migration script.

::

    def upgrade() -> None:
        op.roll_out_version_column("parcels", Unique(), guard="bump", rate=20_000)

    def downgrade() -> None:
        op.roll_back_version_column("parcels", Unique(), guard="bump")

It runs :func:`optilock.rollout.roll_out`: many short transactions, on connections of their own from
the engine of the migration. Earlier steps of the script are therefore committed first, as by
Alembic's ``autocommit_block``. Give the operation a revision of its own: if it is interrupted, run
the revision again, and it continues. If ``optilock migrate`` has run before, it has nothing to do.

With ``--sql`` a script cannot wait and try again. It gets the plain ALTER TABLE with the same
result, and a comment about that. The script cannot find out either which columns count for a guard
trigger that ignores some: name them, ``columns=[...]``. On a connection they are compared with the
table's columns, so the script makes the same trigger, or raises an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from alembic.operations import Operations
from sqlalchemy import Connection

from optilock.alembic import operations as op
from optilock.alembic.operations import (
    Call,
    VersionOperation,
    connection_of,
    pair,
    register_as,
    ways_of,
)
from optilock.alembic.version_column import VersionColumn
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.rollout.attempts import LOCK_TIMEOUT, PATIENCE
from optilock.rollout.fill import SHARE, pace_of
from optilock.rollout.report import Silent
from optilock.rollout.run import roll_out
from optilock.rollout.target import (
    complete_guard,
    guard_of,
    require_column,
    require_counted,
    require_present,
)
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy
from optilock.unit.durations import Seconds, in_seconds

_log = logging.getLogger("optilock")


class Pace(TypedDict, total=False):
    """How fast to work, and how long to wait for others."""

    rate: float | None
    batch: int | None
    share: float
    lock_timeout: Seconds
    patience: Seconds
    nodes: Sequence[str]


_USUAL = Pace(
    rate=None, batch=None, share=SHARE, lock_timeout=LOCK_TIMEOUT, patience=PATIENCE, nodes=()
)


class _RollOperation(VersionOperation):
    """Both directions keep all arguments, so each can make the other."""

    def __init__(
        self,
        table: str,
        token: Token,
        *,
        guard: Policy | None = None,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        schema: str | None = None,
        **pace: Unpack[Pace],
    ) -> None:
        if unknown := pace.keys() - _USUAL.keys():
            raise TypeError(f"{self.verb}() has no argument {sorted(unknown)[0]!r}")
        require_column(token)
        self.table = table
        self.token = token
        self.guard = _counting(guard_of(table, token, schema, guard, ignore), columns)
        given: Any = {**_USUAL, **pace}
        pace_of(given["rate"], given["batch"], given["share"])
        waits = {name: in_seconds(name, given[name]) for name in ("lock_timeout", "patience")}
        self.pace: dict[str, Any] = {**given, **waits, "nodes": tuple(given["nodes"])}
        self.schema = schema

    @property
    def guarding(self) -> dict[str, Any]:
        """The arguments ``guard`` and ``ignore``."""
        if self.guard is None:
            return {"guard": None, "ignore": ()}
        return {"guard": self.guard.policy, "ignore": list(self.guard.ignore)}

    @property
    def columns(self) -> list[str]:
        return [] if self.guard is None else list(self.guard.columns)

    def call(self) -> Call:
        options = {**self.guarding, "columns": self.columns or None, "schema": self.schema}
        options["ignore"] = options["ignore"] or None
        return Call(self.verb, (self.table, self.token), options)

    @classmethod
    def invoke(
        cls,
        operations: Any,
        table: str,
        token: Token,
        *,
        guard: Policy | None = None,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        schema: str | None = None,
        **pace: Any,
    ) -> None:
        given: Any = {"guard": guard, "ignore": ignore, "columns": columns, **pace}
        operations.invoke(cls(table, token, schema=schema, **given))

    def reverse(self) -> Any:
        given = {**self.guarding, "columns": self.columns, **self.pace}
        return self.opposite(self.table, self.token, schema=self.schema, **given)


def _counting(guard: GuardTrigger | None, columns: Iterable[str]) -> GuardTrigger | None:
    named: Any = columns if isinstance(columns, str) else tuple(columns)
    if not named:
        return guard
    if guard is None or not guard.ignore:
        raise ConfigurationError(
            f"columns={named!r} without ignore=: where no column is ignored, all of them count."
            " Leave columns= out, or name in ignore= those that do not (generated ones, too)."
        )
    return replace(guard, columns=named)


@register_as("roll_out_version_column")
class RollOutVersionColumn(_RollOperation):
    """Give a table that others are writing the column of ``token``, in short transactions.

    Args:
        guard: the policy of the guard trigger to create with it; None for no guard trigger.
        ignore: columns whose change does not count for the guard trigger.
        columns: all others, where some are ignored; needed for ``--sql``.
        rate: rows a second at most.
        batch: rows of a batch; None for as many as take 3 milliseconds.
        share: the part of its time that it may work.
        lock_timeout: seconds that a step waits for a lock before it tries again later.
        patience: seconds to continue trying for one lock.
        nodes: of a Galera cluster, ``host:port`` of every node as it is reached from here; without
            them the addresses that the cluster reports.

    Raises:
        ConfigurationError: no such table or column, no primary key, a column of that name with
            another type; or the migration runs in a transaction that Alembic cannot end.
        OptilockError: a lock was not available, or the user may not change the table. Completed
            steps stay; run the revision again to continue.
    """

    def call(self) -> Call:
        call = super().call()
        usual: dict[str, Any] = {**_USUAL}
        pace = {name: None if value == usual[name] else value for name, value in self.pace.items()}
        pace["nodes"] = [*self.pace["nodes"]] or None
        return Call(call.name, call.arguments, {**call.options, **pace})

    def do(self, operations: Operations) -> None:
        connection = connection_of(operations)
        if connection is None:
            _as_text(operations, self)
            return
        if self.guard is not None and self.columns:
            column = VersionColumn(operations, self.table, self.schema, self.token)
            target = column.look()
            if target is not None:
                require_counted(self.guard, target)
        with _between_transactions(operations, self.table):
            schema = self.schema or _schema_of(connection, self.table)
            roll_out(
                connection.engine,
                self.table,
                token=self.token,
                schema=schema,
                progress=_Logged(self.table),
                **self.guarding,
                **self.pace,
            )


@register_as("roll_back_version_column")
class RollBackVersionColumn(_RollOperation):
    """Remove the triggers and the column that ``roll_out_version_column`` made.

    Its arguments are the same; those about the pace are for the reverse.

    Raises:
        ConfigurationError: no such table, no such column, a guard trigger that is not named.
        OptilockError: the user may not change the table.
    """

    def do(self, operations: Operations) -> None:
        table, schema, token = self.table, self.schema, self.token
        column = VersionColumn(operations, table, schema, token)
        require_present(column.look(), table)
        connection = connection_of(operations)
        if connection is not None:
            ways_of(operations).begin_in_migration(connection, table, anew=False)
        if self.guard is not None:
            operations.invoke(op.DropGuardTrigger(self.guard))
        if token.has_trigger:
            operations.invoke(op.DropVersionTrigger(table, token, schema=schema))
        column.drop()


pair(RollOutVersionColumn, RollBackVersionColumn)


@contextmanager
def _between_transactions(operations: Operations, table: str) -> Iterator[None]:
    """End the migration's transaction, and begin another one after the block."""
    with ExitStack() as stack:
        try:
            stack.enter_context(operations.get_context().autocommit_block())
        except AssertionError:  # Alembic's own answer
            raise ConfigurationError(
                f"The version of {table} cannot be rolled out inside a transaction that began"
                " before Alembic was configured. Nothing was changed: commit in env.py before"
                " context.configure(), or write op.add_version_column."
            ) from None
        yield


def _schema_of(connection: Connection, table: str) -> str | None:
    """Return the schema where the migration's connection finds the table (``SET search_path``)."""
    ways = database_of(connection.dialect).rollout()
    current = ways.schema_of(connection, table) or ways.current_schema(connection)
    return None if current == connection.dialect.default_schema_name else current


def _as_text(operations: Operations, operation: RollOutVersionColumn) -> None:
    context = operations.get_context()
    guard, table, token = operation.guard, operation.table, operation.token
    if guard is not None:
        guard = complete_guard(guard, None)
    context.impl.static_output(
        "-- As text this is no roll-out: ALTER TABLE holds the table for as long as it takes."
    )
    VersionColumn(operations, table, operation.schema, token).add(None)
    if token.has_trigger:
        operations.invoke(op.CreateVersionTrigger(table, token, schema=operation.schema))
    if guard is not None:
        if not guard.ignore:
            context.impl.static_output(
                "-- Every column counts. If some are generated, write them in ignore=, and the"
                " others in columns=, as a roll-out on a connection does."
            )
        operations.invoke(op.CreateGuardTrigger(guard))


class _Logged(Silent):
    """Progress as lines of the log."""

    def __init__(self, table: str) -> None:
        self.table = table

    def step(self, name: str, total: int | None = None) -> None:
        about = f", about {total:,} rows" if total else ""
        _log.info("version of %s: %s%s", self.table, name, about)

    def waiting(self, why: str) -> None:
        _log.info("version of %s: waiting, %s", self.table, why)
