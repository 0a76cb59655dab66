"""A roll-out that was not finished is taken back (``optilock migrate --abort``).

::

    abort(engine, "accounts", token=Counter())

Its CHECK, its triggers, the column with the versions that were given, and the note of who works:
all go, each in a short transaction that waits for nobody longer than a roll-out does. The table is
then what it was before. A version that is NOT NULL is finished: programs may rely on it, and it is
dropped by a migration (``op.roll_back_version_column``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from optilock.dialects import database_of
from optilock.dialects.migrations import Target
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_ddl, trigger_name
from optilock.rollout.claim import claim_of
from optilock.rollout.fill import Attempts
from optilock.rollout.nodes import same_on_all
from optilock.rollout.opened import LOCK_TIMEOUT, PATIENCE, opened, require_column
from optilock.rollout.refusals import require_version
from optilock.rollout.report import Progress
from optilock.rollout.target import target_of
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.unit.backoff import Seconds

__all__ = ["abort"]


def abort(
    engine: Engine,
    table: str,
    *,
    token: Token | None = None,
    schema: str | None = None,
    lock_timeout: Seconds = LOCK_TIMEOUT,
    patience: Seconds = PATIENCE,
    nodes: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Remove what a roll-out has left behind; the names of the steps that were needed.

    ``nodes`` are those of a Galera cluster, as for ``roll_out``.

    Raises:
        ConfigurationError: no such table, or the version is finished; nothing was changed.
        OptilockError: the roll-out is running; or a lock was not to be had; or the user may not
            change the table. What was removed stays so, and running it again goes on.
    """
    token = Counter() if token is None else token
    require_column(token)
    waits: Any = {"lock_timeout": lock_timeout, "patience": patience, "progress": progress}
    with (
        opened(engine, table, call="abort", **waits) as attempts,
        same_on_all(engine, attempts, table, schema, nodes),
    ):
        connection, ways = attempts.connection, attempts.ways
        with connection.begin():
            target = target_of(connection, table, schema, token)
            claim = claim_of(table, schema or ways.current_schema(connection))
            require_version(connection, ways, target)
            _require_unfinished(target)
            if target.column is None and not claim.is_there(connection):
                return ()
        with attempts.alone(claim):
            attempts.table = target.table
            steps = _Abort(attempts, target).run() if target.column is not None else ()
    return (*steps, "drop the note of who works")


def _require_unfinished(target: Target) -> None:
    if target.column is not None and not target.version.nullable:
        raise ConfigurationError(
            f"{target.table.fullname}.{target.name} is NOT NULL, so its roll-out is over, and"
            " programs may rely on it. Nothing was changed: drop it by a migration"
            " (op.roll_back_version_column)."
        )


@dataclass
class _Abort:
    attempts: Attempts
    target: Target

    def run(self) -> tuple[str, ...]:
        ways, dialect, target = self.attempts.ways, self.attempts.connection.dialect, self.target
        done = []
        for name, steps in (
            ("drop the check", ways.undo_require(target, dialect)),
            ("drop the triggers", [ways.create_trigger(one) for one in self._triggers()]),
            ("drop the column", ways.drop_column(target, dialect)),
        ):
            for step in steps:
                self.attempts.progress.step(name)
                self.attempts.run(f"change {target.table.fullname}", step, long=True)
            done += [name] if steps else []
        return tuple(done)

    def _triggers(self) -> list[str]:
        """Statements that drop the token's trigger, and the guard trigger, where they are."""
        target, connection = self.target, self.attempts.connection
        table, token = target.table, target.token
        triggers = database_of(connection.dialect).guard_triggers(connection.dialect)
        with connection.begin():
            there = triggers.found(connection, table.schema)
        names = {one.name for one in there if one.table == table.name}
        if token.has_trigger:
            drop = trigger_ddl(table, target.version, connection.dialect).drop
            return list(drop) if trigger_name(table.name, target.name) in names else []
        guard = GuardTrigger(table.name, token, "bump", schema=table.schema)
        return list(triggers.drop(guard)) if guard.name in names else []
