"""How long tokens and keys are kept: :func:`purge` deletes those that are older.

A random token is needed until its unit, or ``committed()``, has found out what became of the unit;
that one answers False for 23 hours only, so ages of less than a day are for programs that ask
earlier. A key is needed for as long
as its call may be repeated: after a purge the call runs again. So both are kept longer than the
longest transaction, an hour at least. The database's clock decides.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.util import greenlet_spawn

from optilock.dialects import database_of
from optilock.errors import ConfigurationError
from optilock.exactly_once.questions import engine_of_tokens

if TYPE_CHECKING:
    from optilock.exactly_once.questions import AsyncSessions, SyncSessions

_LEAST = timedelta(hours=1)
_DAY = timedelta(days=1)


def purge(
    sessions: SyncSessions,
    tokens: float | timedelta = _DAY,
    keys: float | timedelta = 30 * _DAY,
    *,
    batch: int = 1000,
    batches: int | None = None,
) -> int:
    """Delete old tokens and keys, and return how many; for a scheduler, never inside of a unit.

    Each batch is a transaction of its own. Rows that another purge deletes are skipped.

    Args:
        sessions: a session factory, or the engine of the database.
        tokens, keys: how old they are at least, in seconds or as a timedelta; an hour or more.
        batch: the most rows of one transaction.
        batches: the most transactions for tokens, and for keys; by default until nothing is left.

    Raises:
        ConfigurationError: an argument cannot work, or the table is missing.
    """
    engine = engine_of_tokens(sessions, "purge", is_async=False)
    return _purge(engine, tokens, keys, batch, batches)


async def purge_async(
    sessions: AsyncSessions,
    tokens: float | timedelta = _DAY,
    keys: float | timedelta = 30 * _DAY,
    *,
    batch: int = 1000,
    batches: int | None = None,
) -> int:
    """:func:`optilock.exactly_once.purge` for async sessions: same arguments and errors."""
    engine = engine_of_tokens(sessions, "purge", is_async=True)
    deleted: int = await greenlet_spawn(_purge, engine, tokens, keys, batch, batches)
    return deleted


def _purge(
    engine: Engine,
    tokens: float | timedelta,
    keys: float | timedelta,
    batch: int,
    batches: int | None,
) -> int:
    ages = {True: _milliseconds("tokens", tokens), False: _milliseconds("keys", keys)}
    _require_count("batch", batch)
    if batches is not None:
        _require_count("batches", batches)
    statements = database_of(engine.dialect).commit_tokens
    deleted = 0
    for random, older in ages.items():
        found, done = batch, 0
        while found == batch and (batches is None or done < batches):
            with engine.begin() as connection:
                if not done:
                    statements.require_table(connection)
                found = statements.purge(connection, random=random, older=older, most=batch)
            deleted, done = deleted + found, done + 1
    return deleted


def _milliseconds(name: str, age: float | timedelta) -> int:
    seconds = age.total_seconds() if isinstance(age, timedelta) else age
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not _LEAST.total_seconds() <= seconds < math.inf:
        raise ConfigurationError(
            f"purge({name}={age!r}) is refused: give seconds or a timedelta, an hour at least. A"
            " row that is deleted while its unit is asked about, or its call may be repeated, lets"
            " the work run twice. Nothing was deleted."
        )
    return round(seconds * 1000)


def _require_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(
            f"purge({name}={value!r}) is refused: it is a number of 1 or more. Nothing was deleted."
        )
