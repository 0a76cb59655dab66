"""The outcome of a COMMIT whose answer was lost: a question that is also a fence.

The question is an INSERT of the unit's token that is committed. It waits for a transaction that has
the token and has not ended. If the token is there, the unit is stored. If it is not, the question's
own row is stored in its place, so that a COMMIT that comes late fails on the primary key. A SELECT,
or an INSERT that is rolled back, proves nothing about a COMMIT that is still under way.

A key is inserted before the body of its unit, and the next attempt inserts it again. So the
question for a key leaves no row behind. Where locks are those of one node alone (Galera), its row
is stored, and then deleted.

Each failure of the asking leaves the outcome unknown. It asks again, on another connection, until
:data:`PATIENCE` is over.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only, greenlet_spawn

from optilock._watched.session.connections import binds_of_sessions
from optilock.dialects import database_of
from optilock.dialects.causes import Cause
from optilock.dialects.commit_tokens import FENCE, RANDOM, StoredToken
from optilock.dialects.waits import Wait
from optilock.errors import CommitOutcomeUnknown, ConfigurationError
from optilock.exactly_once.keys import not_done

#: Seconds: how long a question is asked; the first and the longest pause between two tries; and how
#: much longer the last try may take.
PATIENCE, _FIRST, _PAUSE, _LAST = 10.0, 0.01, 1.0, 0.5
#: Milliseconds for which a missing token proves that its unit is not stored. A purge deletes tokens
#: after a day; an hour is for clocks that differ.
_ASKED_WITHIN = 23 * 3_600_000

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker

    SyncSessions = sessionmaker[Any] | scoped_session[Any] | Engine
    AsyncSessions = async_sessionmaker[Any] | async_scoped_session[Any] | AsyncEngine

_log = logging.getLogger("optilock")


def random_token() -> str:
    """Return a new token, which sorts by its time."""
    return f"{RANDOM}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


class Unanswered(Exception):
    """No answer came in time; the cause is the last error."""


class TooOld(Exception):
    """There is no such token, and a purge may have deleted it."""


def ask_for(
    engine: Engine, token: str, patience: float | None = None, *, purged: bool = False
) -> StoredToken | None:
    """Return the row of the token; ``None``: its unit is not stored, and never will be.

    With ``purged`` a purge may have deleted it: nothing is stored in its place.

    Raises:
        Unanswered: no server could be asked in time.
        TooOld: a token that may be purged is not there.
        ConfigurationError: there is no table of tokens.
    """
    patience = PATIENCE if patience is None else patience
    end = time.monotonic() + patience
    if engine.dialect.is_async:
        return _in_task(engine, token, end, purged)
    if isinstance(engine.pool, (SingletonThreadPool, StaticPool)):  # of this thread alone
        return _ask_until(engine, token, end, purged)
    return _in_thread(engine, token, end, purged)


def _in_thread(engine: Engine, token: str, end: float, purged: bool) -> StoredToken | None:
    """Ask in a thread, which is left behind if a server does not answer at all."""
    answer: Future[StoredToken | None] = Future()

    def run() -> None:
        try:
            answer.set_result(_ask_until(engine, token, end, purged))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="optilock question", daemon=True).start()
    try:
        return answer.result(end - time.monotonic() + _LAST)
    except TimeoutError as error:
        raise Unanswered from error


def _in_task(engine: Engine, token: str, end: float, purged: bool) -> StoredToken | None:
    asked = greenlet_spawn(_ask_until, engine, token, end, purged)
    try:
        answer: StoredToken | None = await_only(
            asyncio.wait_for(asked, end - time.monotonic() + _LAST)
        )
    except TimeoutError as error:
        raise Unanswered from error
    return answer


def _ask_until(engine: Engine, token: str, end: float, purged: bool) -> StoredToken | None:
    pause = _FIRST
    while True:
        try:
            return _ask_once(engine, token, max(0.01, end - time.monotonic()), purged)
        except TooOld:
            raise
        except Exception as error:
            _require_table(engine, error)
            left = end - time.monotonic()
            if left <= 0:
                raise Unanswered from error
            _log.debug("a question about a COMMIT has failed; it is asked again", exc_info=True)
        _sleep(engine, min(pause, left))
        pause = min(2 * pause, _PAUSE)


def _require_table(engine: Engine, error: Exception) -> None:
    """Raise ``ConfigurationError`` if no later question can be answered: there is no table."""
    database = database_of(engine.dialect)
    if not isinstance(error, DBAPIError) or database.classify(error) is not Cause.OTHER:
        return
    with suppress(DBAPIError), engine.connect() as connection:
        database.commit_tokens.require_table(connection)


def _ask_once(engine: Engine, token: str, seconds: float, purged: bool) -> StoredToken | None:
    database = database_of(engine.dialect)
    tokens, dropped = database.commit_tokens, False
    with engine.connect() as connection:
        with connection.begin() as transaction:
            found = None
            if not tokens.insert(connection, token, FENCE, Wait(seconds)):
                found = tokens.read(connection, token)
                if found is None:
                    raise LookupError("the token was deleted between two statements")
            elif purged:
                transaction.rollback()
                raise TooOld
            elif not leaves_fence(token):
                dropped = database.servers.locks_are_local(connection)
                if not dropped:
                    transaction.rollback()
        if dropped:
            with connection.begin():
                tokens.drop_fence(connection, token)
    return None if found is None or found.fingerprint == FENCE else found


def leaves_fence(token: str) -> bool:
    """Return whether the question for the token is stored; that for a key is not."""
    return token.startswith(RANDOM)


def _sleep(engine: Engine, seconds: float) -> None:
    if engine.dialect.is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


# -- for programs ----------------------------------------------------------------------------------


def committed(sessions: SyncSessions, token: str) -> bool:
    """Return whether the unit of a ``CommitOutcomeUnknown`` is stored, by its ``token``.

    After False it never will be: a COMMIT that comes late fails. Ask outside of units.

    Args:
        sessions: those that the unit was opened with.

    Raises:
        CommitOutcomeUnknown: the database could not be asked within ten seconds.
        ConfigurationError: it is no token, or there is no such token and it is older than 23 hours;
            a key was not done; there is no table of tokens; or ``sessions`` names no engine, or
            several.
    """
    return _committed(engine_of_tokens(sessions, "committed", is_async=False), token)


async def committed_async(sessions: AsyncSessions, token: str) -> bool:
    """:func:`optilock.exactly_once.committed` for async sessions: same arguments and errors."""
    engine = engine_of_tokens(sessions, "committed", is_async=True)
    answer: bool = await greenlet_spawn(_committed, engine, token)
    return answer


def _committed(engine: Engine, token: str) -> bool:
    if not isinstance(token, str) or not 0 < len(token) <= 200:
        raise ConfigurationError(
            "committed() takes the token of a CommitOutcomeUnknown: error.token, a text of 1 to 200"
            " characters. Nothing was sent."
        )
    try:
        found = ask_for(engine, token, purged=_may_be_purged(token))
    except TooOld:
        raise ConfigurationError(_TOO_OLD) from None
    except Unanswered as error:
        raise unknown_outcome("the database could not be asked", token) from error.__cause__
    if found is not None and found.result is None and not token.startswith(RANDOM):
        raise not_done(token)
    return found is not None


def _may_be_purged(token: str) -> bool:
    """Return whether a random token is old; it begins with its milliseconds (random_token)."""
    if not token.startswith(RANDOM):
        return False
    try:
        made = int(token[1:13], 16)
    except ValueError:
        raise ConfigurationError(
            "committed() got a text that begins as a token and is none: give it error.token of a"
            " CommitOutcomeUnknown, unchanged. Nothing was sent."
        ) from None
    return time.time_ns() // 1_000_000 - made > _ASKED_WITHIN


_TOO_OLD = (
    "committed() got a token that is older than 23 hours, and there is no such row: the unit was"
    " not stored, or purge() has deleted its row since. Compare the rows of the unit's work to find"
    " out. Ask for a token within 23 hours, or use a key, whose rows are kept for 30 days."
)


def unknown_outcome(what: str, token: str) -> CommitOutcomeUnknown:
    """Return the error for an outcome that could not be found out."""
    error = CommitOutcomeUnknown(
        f"{what}, and within {PATIENCE:.0f} seconds nothing answered whether this unit of work is"
        " stored. It is either stored completely or not at all. Ask later, and within 23 hours:"
        " optilock.exactly_once.committed(sessions, error.token); with a key of your own, simply"
        " call again with the key."
    )
    error.token = token
    return error


def engine_of_tokens(sessions: Any, call: str, *, is_async: bool) -> Engine:
    """Return the one engine of a session factory, or an engine itself.

    Raises:
        ConfigurationError: there is none, or several, or one of the other kind.
    """
    found: dict[Any, Engine] = {}
    for bind in binds_of_sessions(sessions):
        if isinstance(bind, Connection):
            bind = bind.engine
        found[bind.pool] = bind
    if len(found) != 1:
        raise ConfigurationError(
            f"{call}() got {type(sessions).__name__}, which names"
            f" {'several engines' if found else 'no engine'}: give it the sessionmaker that the"
            " units are opened with, or the Engine of the database that has"
            " optilock_commit_tokens. Nothing was sent."
        )
    (engine,) = found.values()
    if engine.dialect.is_async is not is_async:
        kind = "a sync" if is_async else "an async"
        module = "exactly_once" if is_async else "asyncio"
        raise ConfigurationError(
            f"{call}() got {kind} engine: use optilock.{module}.{call}(). Nothing was sent."
        )
    return engine
