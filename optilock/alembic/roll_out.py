"""A version for a table that others are writing, as an operation of a migration script.

::

    def upgrade() -> None:
        op.roll_out_version_column("parcels", Unique(), guard="bump", rate=20_000)

    def downgrade() -> None:
        op.roll_back_version_column("parcels", Unique(), guard="bump")

It is :func:`optilock.rollout.roll_out`: many short transactions, on connections of their own from
the engine of the migration. What the script has done before it is therefore committed first, as
Alembic's ``autocommit_block`` does it. Give it a revision of its own: if it is interrupted, the
revision is run again and goes on where it stood. Where ``optilock migrate`` has been there before,
it finds nothing to do.

As text (``--sql``) there is nobody who could wait and try again: written is the plain ALTER TABLE
with the same result, and a comment that says so. Nobody can be asked either which columns count for
a guard trigger that ignores some: name them, ``columns=[...]``. On a connection they are compared
with those of the table, so the script makes the same trigger, or there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from alembic.operations import Operations
from sqlalchemy import Connection

from optilock.alembic import triggers as op
from optilock.alembic.operation import Call, VersionOperation, connection_of, ways_of
from optilock.alembic.version_column import VersionColumn
from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.rollout.attempts import LOCK_TIMEOUT as _LOCK_TIMEOUT
from optilock.rollout.attempts import PATIENCE as _PATIENCE
from optilock.rollout.attempts import require_column
from optilock.rollout.fill import SHARE, pace_of
from optilock.rollout.report import Silent
from optilock.rollout.run import roll_out
from optilock.rollout.target import completed, guard_of, require_counted, require_present
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy
from optilock.unit.retry import Seconds, in_seconds

_Roll = TypeVar("_Roll", bound="_RollOperation")
_log = logging.getLogger("optilock")


class _RollOperation(VersionOperation):
    """Both directions keep everything, so that each can make the other."""

    def __init__(
        self,
        table: str,
        token: Token,
        *,
        guard: Policy | None = None,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        rate: float | None = None,
        batch: int | None = None,
        share: float = SHARE,
        lock_timeout: Seconds = _LOCK_TIMEOUT,
        patience: Seconds = _PATIENCE,
        nodes: Sequence[str] = (),
        schema: str | None = None,
    ) -> None:
        require_column(token)
        self.table = table
        self.token = token
        self.guard = _counting(guard_of(table, token, schema, guard, ignore), columns)
        pace_of(rate, batch, share)
        self.pace: dict[str, Any] = {
            "rate": rate,
            "batch": batch,
            "share": share,
            "lock_timeout": in_seconds("lock_timeout", lock_timeout),
            "patience": in_seconds("patience", patience),
            "nodes": tuple(nodes),
        }
        self.schema = schema

    @property
    def guarding(self) -> dict[str, Any]:
        """``guard=`` and ``ignore=``, as they are given."""
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

    def _as(self, kind: type[_Roll]) -> _Roll:
        given = {**self.guarding, "columns": self.columns, **self.pace}
        return kind(self.table, self.token, schema=self.schema, **given)


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


@Operations.register_operation("roll_out_version_column")
class RollOutVersionColumn(_RollOperation):
    """The column, its triggers, filled and NOT NULL, in short transactions."""

    verb = "roll_out_version_column"

    @classmethod
    def roll_out_version_column(
        cls,
        operations: Any,
        table: str,
        token: Token,
        *,
        guard: Policy | None = None,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        rate: float | None = None,
        batch: int | None = None,
        share: float = SHARE,
        lock_timeout: Seconds = _LOCK_TIMEOUT,
        patience: Seconds = _PATIENCE,
        nodes: Sequence[str] = (),
        schema: str | None = None,
    ) -> None:
        """Give a table that others are writing the column of ``token``.

        Args:
            guard: the policy of the guard trigger that comes with it; None for no such trigger.
            ignore: columns whose change does not count for the guard trigger.
            columns: all others, where some are ignored; needed for ``--sql``.
            rate: rows a second at most.
            batch: rows of a batch; None for as many as take 3 milliseconds.
            share: the part of its time that it may work.
            lock_timeout: seconds that a step waits for a lock before it tries again later.
            patience: seconds to go on trying for one lock.
            nodes: of a Galera cluster, ``host:port`` of every node as it is reached from here;
                without them those that the cluster tells.

        Raises:
            ConfigurationError: no such table or column, no primary key, a column of that name with
                another type; or the migration runs in a transaction that Alembic cannot end.
            OptilockError: a lock was not to be had, or the user may not change the table. What was
                done stays; running the revision again goes on.
        """
        operations.invoke(
            cls(
                table,
                token,
                guard=guard,
                ignore=ignore,
                columns=columns,
                rate=rate,
                batch=batch,
                share=share,
                lock_timeout=lock_timeout,
                patience=patience,
                nodes=nodes,
                schema=schema,
            )
        )

    def call(self) -> Call:
        call = super().call()
        usual = {"share": SHARE, "lock_timeout": _LOCK_TIMEOUT, "patience": _PATIENCE}
        pace = {n: None if value == usual.get(n) else value for n, value in self.pace.items()}
        pace["nodes"] = [*self.pace["nodes"]] or None
        return Call(call.name, call.arguments, {**call.options, **pace})

    def reverse(self) -> RollBackVersionColumn:
        return self._as(RollBackVersionColumn)

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


@Operations.register_operation("roll_back_version_column")
class RollBackVersionColumn(_RollOperation):
    """The triggers and the column go."""

    verb = "roll_back_version_column"

    @classmethod
    def roll_back_version_column(
        cls,
        operations: Any,
        table: str,
        token: Token,
        *,
        guard: Policy | None = None,
        ignore: Iterable[str] = (),
        columns: Iterable[str] = (),
        schema: str | None = None,
    ) -> None:
        """Take from a table what ``roll_out_version_column`` with these arguments gave it.

        Raises:
            ConfigurationError: no such table, no such column, a guard trigger that is not named.
            OptilockError: the user may not change the table.
        """
        given: Any = {"guard": guard, "ignore": ignore, "columns": columns}
        operations.invoke(cls(table, token, schema=schema, **given))

    def reverse(self) -> RollOutVersionColumn:
        return self._as(RollOutVersionColumn)

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


@contextmanager
def _between_transactions(operations: Operations, table: str) -> Iterator[None]:
    """With the migration's transaction ended, and another one begun afterwards."""
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
    """The schema in which the migration's connection finds the table (``SET search_path``)."""
    ways = database_of(connection.dialect).rollout()
    current = ways.schema_of(connection, table) or ways.current_schema(connection)
    return None if current == connection.dialect.default_schema_name else current


def _as_text(operations: Operations, operation: RollOutVersionColumn) -> None:
    context = operations.get_context()
    guard, table, token = operation.guard, operation.table, operation.token
    if guard is not None:
        guard = completed(guard, None)
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
    """Tells the log how far it is."""

    def __init__(self, table: str) -> None:
        self.table = table

    def step(self, name: str, total: int | None = None) -> None:
        about = f", about {total:,} rows" if total else ""
        _log.info("version of %s: %s%s", self.table, name, about)

    def waiting(self, why: str) -> None:
        _log.info("version of %s: waiting, %s", self.table, why)
