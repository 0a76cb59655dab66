"""The roll-out: what is missing is done, step after step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError, TimeoutError

from optilock.dialects import database_of
from optilock.dialects.migrations import Step, Target, Ways
from optilock.errors import ConfigurationError, OptilockError, described
from optilock.rollout.fill import Attempts, Filler, Pace
from optilock.rollout.report import Progress, Report, Silent
from optilock.rollout.target import guard_of, missing, require_known, target_of
from optilock.session.connections import require_engine
from optilock.tokens import Counter, Token
from optilock.tokens.guard_trigger import GuardTrigger, Policy
from optilock.unit.backoff import Seconds, in_seconds

R = TypeVar("R")


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
    wait, pace = in_seconds("lock_timeout", lock_timeout), Pace(rate=rate)
    patience = in_seconds("patience", patience)
    with _alone(engine, ways, table, schema), _second(engine) as connection:
        working = connection.execution_options(**ways.options)
        ways.prepare(working)
        progress = Silent() if progress is None else progress
        attempts = Attempts(working, ways, progress, wait, patience)
        return _Rollout(attempts, pace).run(table, schema, token, guarding)


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
        within = schema or ways.schema_of(connection, table) or ways.current_schema(connection)
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
        target = self._look(target_of, table, schema, token)
        self.ways.first_of(token)
        self.ways.check(target)
        if guard is not None:
            require_known(guard, target)
        if target.column is None:
            self._do(
                "add the column", f"change {table}", self.ways.add_column(target, self.dialect)
            )
            target = self._look(target_of, table, schema, token)
        elif target.version.nullable and not target.has_default:
            # Or rows without a version would come for as long as others insert.
            self._change("set the default", target, self.ways.set_default)
        for trigger in self._look(missing, target, guard):
            step = self.ways.create_trigger(*trigger.statements)
            self._do(trigger.step, f"create triggers on {table}", [step])
        filler = Filler(self.attempts, target, self.pace)
        if target.version.nullable:
            self._begin("fill", self._look(self.ways.rows, target))
            filler.run()
            self._change("require it", target, self.ways.require)
        return Report(
            tuple(self.steps),
            filler.filled,
            filler.batches,
            self.attempts.waits,
            time.monotonic() - started,
        )

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
            self.attempts.run(what, step)

    def _begin(self, name: str, total: int | None = None) -> None:
        self.steps.append(name)
        self.attempts.progress.step(name, total)
