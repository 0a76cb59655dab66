"""``roll_out`` does the missing steps one after another, and ``abort`` undoes them.

::

    roll_out(engine, "accounts", token=Counter())
    abort(engine, "accounts", token=Counter())       # or: optilock migrate --abort

``abort`` removes the CHECK, the triggers, the column with its versions, and the claim, each in a
short transaction that waits as long as one of a roll-out. The table is then as it was before. A
version that is NOT NULL is finished: programs may rely on it, so a migration drops it
(``op.roll_back_version_column``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError

from optilock._mapping.triggers import trigger_ddl, trigger_name
from optilock.dialects import database_of
from optilock.dialects.migrations import Found, Step, Target, Ways
from optilock.errors import ConfigurationError, OptilockError
from optilock.rollout.attempts import LOCK_TIMEOUT, PATIENCE, Attempts, compare_nodes, open_attempts
from optilock.rollout.claim import claim_for
from optilock.rollout.fill import SHARE, Filler, Pace, pace_of
from optilock.rollout.report import Progress, Report
from optilock.rollout.target import (
    guard_of,
    look_at_table,
    missing_triggers,
    require_column,
    require_version,
    target_of,
)
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy, read_mark
from optilock.unit.durations import Seconds

#: Attempts of the last step, if rows without a version are inserted in the meantime.
_ATTEMPTS = 3
#: Seconds to continue trying to undo it.
_UNDO_PATIENCE = 5.0


def roll_out(
    engine: Engine,
    table: str,
    *,
    token: Token | None = None,
    schema: str | None = None,
    rate: float | None = None,
    batch: int | None = None,
    share: float = SHARE,
    lock_timeout: Seconds = LOCK_TIMEOUT,
    patience: Seconds = PATIENCE,
    guard: Policy | None = None,
    ignore: Iterable[str] = (),
    nodes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Put the column of ``token`` on a table while other programs write it.

    Args:
        engine: a sync engine; one connection works, another one locks the claim.
        table: the table's name, without its schema.
        token: the token of the column, ``Counter()`` by default.
        rate: rows a second at most.
        batch: rows of a batch, at any duration; None for as many as take 3 milliseconds.
        share: the part of its time that it may work; the rest of the time the server is free.
        lock_timeout: seconds that a step waits for a lock, with others behind it, before it tries
            again later.
        patience: seconds to continue trying for one lock.
        guard: the policy of the guard trigger to create before the rows are filled, ``"bump"`` or
            ``"reject"`` (:mod:`optilock.tokens.guard_trigger`); None for no guard trigger.
        ignore: columns whose change does not count for the guard trigger.
        nodes: of a Galera cluster, ``host:port`` of every node as it is reached from here; without
            them the addresses that the cluster reports.

    Raises:
        ConfigurationError: no such table or column, no primary key, a column of that name with
            another type or meaning, a token that this database cannot make; nothing was changed.
        OptilockError: another roll-out of the table is running, a lock was not available, the user
            may not change the table, or the database refused a step. Completed steps stay; run it
            again to continue.
    """
    token = Counter() if token is None else token
    require_column(token)
    guarding, pace = guard_of(table, token, schema, guard, ignore), pace_of(rate, batch, share)
    waits: Any = {"lock_timeout": lock_timeout, "patience": patience, "progress": progress}
    with (
        open_attempts(engine, table, call="roll_out", **waits) as attempts,
        compare_nodes(engine, attempts, table, schema, nodes),
    ):
        return _Rollout(attempts, pace).run(table, schema, token, guarding)


class _Rollout:
    """One roll-out on one connection."""

    def __init__(self, attempts: Attempts, pace: Pace) -> None:
        self.attempts = attempts
        self.ways = attempts.ways
        self.dialect = attempts.connection.dialect
        self.pace = pace
        self.steps: list[str] = []

    def run(
        self, table: str, schema: str | None, token: Token, guard: GuardTrigger | None
    ) -> Report:
        started = time.monotonic()
        target = self.attempts.look(look_at_table, self.ways, table, schema, token, guard)
        claim = self.attempts.look(claim_for, self.ways, target)
        if self._is_done(target, guard) and not self.attempts.look(claim.is_left):
            return Report(seconds=time.monotonic() - started)
        with self.attempts.exclusive(claim):
            self.attempts.table = target.table
            filler = self._steps(self.attempts.look(target_of, table, schema, token), guard)
        return Report(
            tuple(self.steps),
            filler.filled,
            filler.batches,
            self.attempts.waits,
            time.monotonic() - started,
        )

    def _is_done(self, target: Target, guard: GuardTrigger | None) -> bool:
        there = target.column is not None and not target.version.nullable
        return there and not self.attempts.look(missing_triggers, target, guard)

    def _steps(self, target: Target, guard: GuardTrigger | None) -> Filler:
        """Do the missing steps, one after another."""
        if target.column is None:
            self._change("add the column", target, self.ways.add_column)
            table = target.table
            target = self.attempts.look(target_of, table.name, table.schema, target.token)
        elif target.version.nullable and not target.has_default:
            # Without it, other programs would insert more rows without a version.
            self._change("set the default", target, self.ways.set_default)
        for trigger in self.attempts.look(missing_triggers, target, guard):
            step = self.ways.create_trigger(*trigger.statements)
            self._do(trigger.step, f"create triggers on {target.table.fullname}", [step])
        filler = Filler(self.attempts, target, self.pace)
        if target.version.nullable:
            self._begin("fill", self.attempts.look(self.ways.rows, target))
            filler.run()
            self._require(target, filler)
        return filler

    def _require(self, target: Target, filler: Filler) -> None:
        """Do the last step; if it fails, leave a table that every program can write."""
        steps = self.ways.require(target, self.dialect)
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._do("require it", f"change {target.table.fullname}", steps)
            except BaseException as error:
                self._undo_require(target)
                if not (left and isinstance(error, OptilockError) and self._is_left(target)):
                    raise
            filler.run()  # another program has written a row without a version

    def _undo_require(self, target: Target) -> None:
        undoing = replace(self.attempts, patience=min(self.attempts.patience, _UNDO_PATIENCE))
        with suppress(DBAPIError, OptilockError):
            undoing.connection.rollback()
            for step in self.ways.undo_require(target, self.dialect):
                undoing.run("undo the last step", step, long=True)

    def _is_left(self, target: Target) -> bool:
        with suppress(OptilockError):
            return self.attempts.look(self.ways.is_left, target)
        return False

    def _change(
        self, name: str, target: Target, way: Callable[[Target, Dialect], Sequence[Step]]
    ) -> None:
        self._do(name, f"change {target.table.fullname}", way(target, self.dialect))

    def _do(self, name: str, what: str, steps: Sequence[Step]) -> None:
        if steps:
            self._begin(name)
        for step in steps:
            self.attempts.run(what, step, long=True)

    def _begin(self, name: str, total: int | None = None) -> None:
        if name not in self.steps:
            self.steps.append(name)
        self.attempts.progress.step(name, total)


# -- abort -----------------------------------------------------------------------------------------


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
    """Undo an unfinished roll-out; return the names of the steps that were needed.

    ``nodes`` are those of a Galera cluster, as for ``roll_out``.

    Raises:
        ConfigurationError: no such table, or the version is finished; nothing was changed.
        OptilockError: the roll-out is running, a lock was not available, or the user may not change
            the table. Completed steps stay; run it again to continue.
    """
    token = Counter() if token is None else token
    require_column(token)
    waits: Any = {"lock_timeout": lock_timeout, "patience": patience, "progress": progress}
    with (
        open_attempts(engine, table, call="abort", **waits) as attempts,
        compare_nodes(engine, attempts, table, schema, nodes),
    ):
        ways = attempts.ways
        target = attempts.look(_unfinished, ways, table, schema, token)
        claim = attempts.look(claim_for, ways, target)
        if target.column is None and not attempts.look(claim.is_there):
            return ()
        with attempts.exclusive(claim):
            attempts.table = target.table
            # another process may have finished it before our claim
            target = attempts.look(_unfinished, ways, table, schema, token)
            steps = _Abort(attempts, target).run() if target.column is not None else ()
    return (*steps, "drop the owner's note") if attempts.is_dropped else steps


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
        """Return statements that drop the triggers on the column: UPDATEs would fail at them.

        The given token does not matter: a ``RowVersion`` has the same type as a ``Counter``.
        """
        target = self.target
        table, dialect = target.table, self.attempts.connection.dialect
        triggers = database_of(dialect).guard_triggers(dialect)
        found = self.attempts.look(triggers.found, table.schema)
        there = {one.name: one for one in found if one.table == table.name}
        moves = there.get(trigger_name(table.name, target.name))
        guard = GuardTrigger(table.name, Counter(), "bump", schema=table.schema)  # for its name
        guards = there.get(guard.name)
        return [
            *(trigger_ddl(table, target.version, dialect).drop if moves else ()),
            *(triggers.drop(guard) if guards and _stands_on(guards, target) else ()),
        ]


def _stands_on(guard: Found, target: Target) -> bool:
    """Return whether a guard trigger guards this version, not another one of the table."""
    mark = read_mark(guard.read(), guard.table, target.table.schema)
    return mark is None or mark.column == target.name
