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

from sqlalchemy import Connection, Engine

from optilock.dialects import database_of
from optilock.dialects.migrations import Found, Target, Ways
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import trigger_ddl, trigger_name
from optilock.rollout.attempts import LOCK_TIMEOUT, PATIENCE, Attempts, opened, require_column
from optilock.rollout.claim import claim_for
from optilock.rollout.nodes import same_on_all
from optilock.rollout.report import Progress
from optilock.rollout.target import require_version, target_of
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, read_mark
from optilock.unit.retry import Seconds

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
            target = _unfinished(connection, ways, table, schema, token)
            claim = claim_for(connection, ways, target)
            if target.column is None and not claim.is_there(connection):
                return ()
        with attempts.alone(claim):
            attempts.table = target.table
            with connection.begin():  # it may have been finished until nobody else could work
                target = _unfinished(connection, ways, table, schema, token)
            steps = _Abort(attempts, target).run() if target.column is not None else ()
    return (*steps, "drop the note of who works") if attempts.is_dropped else steps


def _unfinished(
    connection: Connection, ways: Ways, table: str, schema: str | None, token: Token
) -> Target:
    target = target_of(connection, table, schema, token)
    require_version(connection, ways, target)
    _require_unfinished(target)
    return target


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
        """Statements that drop what stands on the column: without it every UPDATE would fail.

        Whatever the token is called: a ``RowVersion`` has the same type as a ``Counter``.
        """
        target, connection = self.target, self.attempts.connection
        table, dialect = target.table, connection.dialect
        triggers = database_of(dialect).guard_triggers(dialect)
        with connection.begin():
            found = triggers.found(connection, table.schema)
        there = {one.name: one for one in found if one.table == table.name}
        moves = there.get(trigger_name(table.name, target.name))
        guard = GuardTrigger(table.name, Counter(), "bump", schema=table.schema)  # for its name
        guards = there.get(guard.name)
        return [
            *(trigger_ddl(table, target.version, dialect).drop if moves else ()),
            *(triggers.drop(guard) if guards and _stands_on(guards, target) else ()),
        ]


def _stands_on(guard: Found, target: Target) -> bool:
    """Not on the version that the table has beside this one."""
    said = read_mark(guard.read(), guard.table, target.table.schema)
    return said is None or said.column == target.name
