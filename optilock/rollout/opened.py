"""What a roll-out works with: two connections of an engine, and how long it waits for others.

The same for what a roll-out does, for what it would do (:mod:`optilock.rollout.dry`), and for what
takes it back (:mod:`optilock.rollout.abort`). Each begins by looking at the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError

from optilock.dialects import database_of
from optilock.dialects.migrations import Target, Ways
from optilock.errors import ConfigurationError, described
from optilock.rollout.fill import Attempts
from optilock.rollout.refusals import require_all_rows, require_name, require_version
from optilock.rollout.report import Progress, Silent
from optilock.rollout.target import require_known, target_of
from optilock.session.connections import require_engine
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.unit.backoff import Seconds, in_seconds

__all__ = ["LOCK_TIMEOUT", "PATIENCE", "look", "opened", "require_column"]

#: Seconds: for one lock, and to go on trying.
LOCK_TIMEOUT, PATIENCE = 0.1, 60.0


@contextmanager
def opened(
    engine: Engine,
    table: str,
    *,
    lock_timeout: Seconds,
    patience: Seconds,
    progress: Progress | None,
    call: str,
) -> Iterator[Attempts]:
    """Two connections; the function that is told of in messages is ``call``."""
    require_engine(engine, call)
    if not isinstance(table, str):
        raise ConfigurationError(f"{call}() takes the name of a table, not {described(table)}.")
    ways = database_of(engine.dialect).rollout()
    if ways.speaks is None:
        raise ConfigurationError(
            f"optilock cannot roll out versions on {engine.dialect.name}: add the column with a"
            " migration of your own."
        )
    wait, patience = in_seconds("lock_timeout", lock_timeout), in_seconds("patience", patience)
    with engine.connect() as connection, _beside(engine, ways) as beside:
        working = connection.execution_options(**ways.options)
        ways.prepare(working)
        progress = Silent() if progress is None else progress
        yield Attempts(working, ways, progress, wait, patience, beside=beside)


@contextmanager
def _beside(engine: Engine, ways: Ways) -> Iterator[Connection | None]:
    """A connection that locks our claim while the other one works, where there are such locks."""
    if database_of(engine.dialect).one_lock:
        yield None
        return
    try:
        connection = engine.connect()
    except TimeoutError as error:
        raise ConfigurationError(
            "A roll-out takes two connections of its engine, and the pool gave one: make an engine"
            " for it with poolclass=NullPool."
        ) from error
    with connection:
        yield connection.execution_options(**ways.options)


def look(
    connection: Connection,
    ways: Ways,
    table: str,
    schema: str | None,
    token: Token,
    guard: GuardTrigger | None = None,
) -> Target:
    """The table as it is.

    Raises:
        ConfigurationError: it cannot have the version.
    """
    ways.first_of(token)
    require_name(ways, token)
    target = target_of(connection, table, schema, token)
    require_version(connection, ways, target)
    ways.check(target)
    if guard is not None:
        require_known(guard, target)
    require_all_rows(connection, ways, target)
    return target


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
