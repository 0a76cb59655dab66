"""The roll-out: what is missing is done, step after step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Dialect, Engine
from sqlalchemy.exc import DBAPIError

from optilock.dialects.migrations import Step, Target
from optilock.errors import OptilockError
from optilock.rollout.attempts import LOCK_TIMEOUT, PATIENCE, Attempts, look, opened, require_column
from optilock.rollout.claim import claim_for
from optilock.rollout.fill import SHARE, Filler, Pace, pace_of
from optilock.rollout.nodes import same_on_all
from optilock.rollout.report import Progress, Report
from optilock.rollout.target import guard_of, missing, target_of
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy
from optilock.unit.retry import Seconds

R = TypeVar("R")
#: How often the last step is tried where rows without a version come meanwhile.
_AGAIN = 3
#: Seconds to go on trying to undo it.
_SHORT = 5.0


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
    """Put the column of ``token`` on a table that others are writing.

    Args:
        engine: a sync engine; one connection works, another one holds the right to meanwhile.
        table: the table's name, without its schema.
        token: what the column is to be, ``Counter()`` unless said otherwise.
        rate: rows a second at most.
        batch: rows of a batch, however long it takes; None for as many as take 3 milliseconds.
        share: the part of its time that it may work; the rest of it the server is the writers'.
        lock_timeout: seconds that a step waits for a lock, with others behind it, before it tries
            again later.
        patience: seconds to go on trying for one lock.
        guard: what the guard trigger does that the table gets before it is filled, ``"bump"`` or
            ``"reject"`` (:mod:`optilock.tokens.guard_trigger`); None for no guard trigger.
        ignore: columns whose change does not count for the guard trigger.
        nodes: of a Galera cluster, ``host:port`` of every node as it is reached from here; without
            them those that the cluster tells.

    Raises:
        ConfigurationError: no such table or column, no primary key, a column of that name with
            another type or meaning, a token that this database cannot make; nothing was changed.
        OptilockError: another roll-out of the table runs; or a lock was not to be had; or the user
            may not change the table; or the database refused a step. What was done stays, and
            running it again goes on.
    """
    token = Counter() if token is None else token
    require_column(token)
    guarding, pace = guard_of(table, token, schema, guard, ignore), pace_of(rate, batch, share)
    waits: Any = {"lock_timeout": lock_timeout, "patience": patience, "progress": progress}
    with (
        opened(engine, table, call="roll_out", **waits) as attempts,
        same_on_all(engine, attempts, table, schema, nodes),
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
        target = self._look(look, self.ways, table, schema, token, guard)
        claim = self._look(claim_for, self.ways, target)
        if self._is_done(target, guard) and not self._look(claim.is_left):
            return Report(seconds=time.monotonic() - started)
        with self.attempts.alone(claim):
            self.attempts.table = target.table
            filler = self._steps(self._look(target_of, table, schema, token), guard)
        return Report(
            tuple(self.steps),
            filler.filled,
            filler.batches,
            self.attempts.waits,
            time.monotonic() - started,
        )

    def _is_done(self, target: Target, guard: GuardTrigger | None) -> bool:
        there = target.column is not None and not target.version.nullable
        return there and not self._look(missing, target, guard)

    def _steps(self, target: Target, guard: GuardTrigger | None) -> Filler:
        """What is missing, one after another."""
        if target.column is None:
            self._change("add the column", target, self.ways.add_column)
            table = target.table
            target = self._look(target_of, table.name, table.schema, target.token)
        elif target.version.nullable and not target.has_default:
            # Or rows without a version would come for as long as others insert.
            self._change("set the default", target, self.ways.set_default)
        for trigger in self._look(missing, target, guard):
            step = self.ways.create_trigger(*trigger.statements)
            self._do(trigger.step, f"create triggers on {target.table.fullname}", [step])
        filler = Filler(self.attempts, target, self.pace)
        if target.version.nullable:
            self._begin("fill", self._look(self.ways.rows, target))
            filler.run()
            self._require(target, filler)
        return filler

    def _require(self, target: Target, filler: Filler) -> None:
        """The last step; whatever ends it leaves a table that every program can write."""
        steps = self.ways.require(target, self.dialect)
        for left in reversed(range(_AGAIN)):
            try:
                return self._do("require it", f"change {target.table.fullname}", steps)
            except BaseException as error:
                self._undo_require(target)
                if not (left and isinstance(error, OptilockError) and self._is_left(target)):
                    raise
            filler.run()  # somebody has written a row without a version meanwhile

    def _undo_require(self, target: Target) -> None:
        undoing = replace(self.attempts, patience=min(self.attempts.patience, _SHORT))
        with suppress(DBAPIError, OptilockError):
            undoing.connection.rollback()
            for step in self.ways.undo_require(target, self.dialect):
                undoing.run("undo the last step", step, long=True)

    def _is_left(self, target: Target) -> bool:
        with suppress(DBAPIError):
            return self._look(self.ways.is_left, target)
        return False

    def _look(self, ask: Callable[..., R], *given: Any) -> R:
        """Ask something of the database, in a transaction of its own."""
        with self.attempts.connection.begin():
            return ask(self.attempts.connection, *given)

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
