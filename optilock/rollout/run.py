"""The roll-out: what is missing is done, step after step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, TimeoutError

from optilock.dialects import database_of
from optilock.dialects.rollout import Step, Target, Ways
from optilock.errors import ConfigurationError, OptilockError, described
from optilock.rollout.attempts import Attempts
from optilock.rollout.fill import Filler
from optilock.rollout.pace import Pace
from optilock.rollout.report import Progress, Report, Silent
from optilock.rollout.target import target_of
from optilock.rollout.triggers import Missing, guard_of, missing, require_known
from optilock.session.connections import require_engine
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy
from optilock.unit.backoff import Seconds, in_seconds

__all__ = ["require_column", "roll_out"]


def roll_out(
    engine: Engine,
    table: str,
    *,
    token: Token | None = None,
    schema: str | None = None,
    rate: float | None = None,
    lock_timeout: Seconds = 0.1,
    patience: Seconds = 60,
    guard: Policy | None = None,
    ignore: Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Put the column of ``token`` on a table that others are writing.

    Args:
        engine: a sync engine; one connection works, another one holds the right to.
        table: the table's name, without its schema.
        token: what the column is to be, ``Counter()`` unless said otherwise.
        rate: rows a second at most.
        lock_timeout: seconds that a step waits for a lock, with others behind it, before it tries
            again later.
        patience: seconds to go on trying for one lock.
        guard: what the guard trigger does that the table gets before it is filled, ``"bump"`` or
            ``"reject"`` (:mod:`optilock.tokens.guard_trigger`); None for no guard trigger.
        ignore: columns whose change does not count for the guard trigger.

    Raises:
        ConfigurationError: no such table or column, no primary key, a column of that name with
            another type, a token that this database cannot make; nothing was changed.
        OptilockError: another roll-out of the table runs; or a lock was not to be had; or the user
            may not change the table; or the database refused a step. What was done stays, and
            running it again goes on.
    """
    require_engine(engine, "roll_out")
    if not isinstance(table, str):
        raise ConfigurationError(f"roll_out() takes the name of a table, not {described(table)}.")
    token = Counter() if token is None else token
    require_column(token)
    guarding = guard_of(table, token, schema, guard, ignore)
    ways = database_of(engine.dialect).rollout()
    progress = Silent() if progress is None else progress
    attempts = Attempts(
        ways,
        progress,
        in_seconds("lock_timeout", lock_timeout),
        in_seconds("patience", patience),
    )
    with _alone(engine, ways, table, schema), _second(engine) as connection:
        working = connection.execution_options(**ways.options)
        ways.prepare(working)
        return _Rollout(working, ways, Pace(rate=rate), attempts, progress).run(
            table, schema, token, guarding
        )


def _second(engine: Engine) -> Connection:
    try:
        return engine.connect()
    except TimeoutError as error:
        raise ConfigurationError(
            "A roll-out takes two connections of its engine, and the pool gave one: make an engine"
            " for it with poolclass=NullPool."
        ) from error


def require_column(token: object) -> None:
    """Refuse what is no token, and a token that needs no column."""
    if not isinstance(token, Token):
        raise ConfigurationError(
            f"roll_out() got {token!r}, which has no column: name a token that has, Counter() or"
            " Unique()."
        )
    if token.is_system:
        raise ConfigurationError(
            f"{token!r} is a column that every table of PostgreSQL has: nothing has to be rolled"
            " out. Map the class with it, and be done."
        )


@contextmanager
def _alone(engine: Engine, ways: Ways, table: str, schema: str | None) -> Iterator[None]:
    """Hold the right to roll out this table, on a connection of its own."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        within = schema or ways.current_schema(connection)
        if not ways.hold(connection, f"roll-out of {within}.{table}"):
            raise OptilockError(
                f"Another roll-out of {table} is running. Two would only wait for each other:"
                " let it finish, or end it; this one then goes on where it stood."
            )
        try:
            yield
        finally:
            with suppress(DBAPIError):  # a connection that is lost has no right to give back
                ways.release(connection)


class _Rollout:
    """One roll-out on one connection."""

    def __init__(
        self,
        connection: Connection,
        ways: Ways,
        pace: Pace,
        attempts: Attempts,
        progress: Progress,
    ) -> None:
        self.connection = connection
        self.ways = ways
        self.pace = pace
        self.attempts = attempts
        self.progress = progress
        self.steps: list[str] = []

    def run(
        self, table: str, schema: str | None, token: Token, guard: GuardTrigger | None
    ) -> Report:
        started = time.monotonic()
        target = self._look(table, schema, token)
        self.ways.first_of(token)
        self.ways.check(target)
        if guard is not None:
            require_known(guard, target)
        if target.column is None:
            self._step("add the column")
            for step in self.ways.add_column(target, self.connection.dialect):
                self._do(f"change {table}", step)
            target = self._look(table, schema, token)
        elif target.version.nullable and not target.has_default:
            self._set_default(target)
        for trigger in self._missing(target, guard):
            self._step(trigger.step)
            step = self.ways.create_trigger(*trigger.statements)
            self._do(f"create triggers on {table}", step)
        filler = self._filler(target)
        if target.version.nullable:
            self._step("fill", self._rows(target))
            filler.run()
            self._require(target)
        return Report(
            tuple(self.steps),
            filler.filled,
            filler.batches,
            self.attempts.waits,
            time.monotonic() - started,
        )

    def _look(self, table: str, schema: str | None, token: Token) -> Target:
        with self.connection.begin():
            return target_of(self.connection, table, schema, token)

    def _set_default(self, target: Target) -> None:
        """Or rows without a version would come for as long as others insert."""
        steps = self.ways.set_default(target, self.connection.dialect)
        if steps:
            self._step("set the default")
        for step in steps:
            self._do(f"change {target.table.fullname}", step)

    def _missing(self, target: Target, guard: GuardTrigger | None) -> tuple[Missing, ...]:
        with self.connection.begin():
            return missing(self.connection, target, guard)

    def _rows(self, target: Target) -> int | None:
        with self.connection.begin():
            return self.ways.rows(self.connection, target)

    def _filler(self, target: Target) -> Filler:
        return Filler(
            self.connection,
            target,
            self.ways,
            self.pace,
            self.attempts,
            self.progress,
            self.attempts.patience,
        )

    def _require(self, target: Target) -> None:
        self._step("require it")
        for step in self.ways.require(target, self.connection.dialect):
            self._do(f"change {target.table.fullname}", step)

    def _step(self, name: str, total: int | None = None) -> None:
        self.steps.append(name)
        self.progress.step(name, total)

    def _do(self, what: str, step: Step) -> None:
        self.attempts.run(self.connection, what, lambda: step(self.connection))
