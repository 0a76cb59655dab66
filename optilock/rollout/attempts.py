"""What a roll-out works with: two connections of an engine, and how long it waits for others.

The same for what a roll-out does, for what it would do (:mod:`optilock.rollout.dry`), and for what
takes it back (:mod:`optilock.rollout.abort`). Each begins by looking at the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import tenacity
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError, TimeoutError

from optilock.dialects import Database, database_of
from optilock.dialects.causes import Cause
from optilock.dialects.connections import clear
from optilock.dialects.migrations import Target, Ways
from optilock.errors import ConfigurationError, OptilockError, described
from optilock.rollout.claim import TERM, Claim
from optilock.rollout.report import Progress, Silent
from optilock.rollout.target import (
    require_all_rows,
    require_known,
    require_name,
    require_version,
    target_of,
)
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.unit.retry import Seconds, full_jitter, in_seconds
from optilock.watched.session.connections import require_engine

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


T = TypeVar("T")
#: After a wait for a lock it rests so many times as long: others may have queued behind it.
_REST = 9
_LONGEST_REST = 2.0
#: Seconds to wait for the table of the claim, which nobody uses but roll-outs.
_OF_CLAIM = 2.0
#: How often it is given back where the connection is lost meanwhile.
_OF_GIVING_BACK = 3
_AGAIN = (Cause.LOCK_TIMEOUT, Cause.DEADLOCK, Cause.CONFLICT)


@dataclass
class Attempts:
    """How long to wait for a lock, and for how long to go on trying."""

    connection: Connection
    ways: Ways
    progress: Progress
    #: Seconds; nobody queues behind us for longer.
    lock_timeout: float
    #: Seconds to go on trying.
    patience: float
    #: The right to work on the table, once it was taken; and the connection that locks it.
    claim: Claim | None = None
    beside: Connection | None = None
    #: Has the table of the claim gone?
    is_dropped: bool = False
    #: What is locked, once it is known.
    table: Table | None = None
    waits: int = 0

    def run(self, what: str, work: Callable[[Connection], T], *, long: bool = False) -> T:
        """Do ``work``, which is to do ``what``, in a transaction, and commit.

        ``long``: it may go through the whole table.

        Raises:
            OptilockError: the lock was not to be had for as long as ``patience``, the user of the
                connection may not do that, or the database refused it for a reason of its own.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._lock_was_held),
            wait=tenacity.wait_fixed(min(_REST * self.lock_timeout, _LONGEST_REST))
            + full_jitter(0.1, 1.0),
            stop=tenacity.stop_before_delay(self.patience),
            before_sleep=self._waits,
            reraise=True,
        )
        try:
            result: T = retrying(self._once, work, long)
        except DBAPIError as error:
            if self._database.forbids(error):
                raise OptilockError(
                    f"The user of this connection may not {what}. Nothing was changed by this"
                    " step, and what was done before it stays: give the user that right, or run"
                    " the roll-out again as the table's owner."
                ) from error
            if not self._lock_was_held(error):
                raise OptilockError(
                    f"The database did not {what}; its own error is the cause of this one. Nothing"
                    " was changed by this step, and what was done before it stays: when the reason"
                    " is gone, run the roll-out again, it goes on from here."
                ) from error
            raise OptilockError(
                f"A lock was not to be had within {self.lock_timeout:g} seconds, in"
                f" {self.patience:g} seconds of trying: a transaction holds the table"
                f"{self.whose()}. What was done stays done; run the roll-out again when that"
                " transaction is over."
            ) from error
        return result

    def _once(self, work: Callable[[Connection], T], long: bool) -> T:
        if self.claim is not None and (long or self.claim.is_due):
            self._transact(self.claim.keep)
        if self.claim is None or not long:
            return self._transact(work)
        with self.claim.locked(self.beside):
            return self._transact(partial(self._bounded, work, self.beside, self.lock_timeout))

    def _bounded(
        self,
        work: Callable[[Connection], T],
        beside: Connection | None,
        seconds: float,
        connection: Connection,
    ) -> T:
        with self.ways.bounded(connection, beside, seconds):
            return work(connection)

    def _transact(self, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        try:
            with self.connection.begin():
                self.ways.begin(self.connection, self.lock_timeout if seconds is None else seconds)
                return work(self.connection)
        except BaseException:
            clear([self.connection])
            raise

    def rest(self, seconds: float) -> None:
        """Do nothing, and keep the claim."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TERM / 3))
            if left > TERM / 3 and self.claim is not None:
                self.run("claim the table on", lambda connection: None)

    @contextmanager
    def alone(self, claim: Claim) -> Iterator[None]:
        """Work with the right to, which is given back at the end, whatever happens.

        Raises:
            OptilockError: somebody else works on the table.
        """
        self.run(f"create the table {claim.row.name}, in which a roll-out is noted", claim.make)
        try:  # an interrupt may come when the row is ours already; another's is left alone
            self.run(f"write the table {claim.row.name}, in which a roll-out is noted", claim.take)
            self.claim = claim
            yield
        finally:
            self._give_back(claim)

    def _give_back(self, claim: Claim) -> None:
        """Drop the table, or let the next one have it; if neither can be done, its time ends it.

        It is tried again, on a new connection if that was lost: nothing else is left to do, and a
        run that comes at once would find that all is done, and leave the table.
        """
        self.claim, interrupted = None, None
        for _ in range(_OF_GIVING_BACK):
            try:
                self.connection.rollback()
                self._end(claim)
                break
            except OptilockError:
                break
            except DBAPIError:
                pass
            except BaseException as error:
                interrupted = interrupted or error
        if interrupted is not None:
            raise interrupted

    def _end(self, claim: Claim) -> None:
        if self._transact(claim.is_there):
            self._transact(claim.keep)
            try:
                seconds = max(self.lock_timeout, _OF_CLAIM)
                self._transact(partial(self._bounded, claim.drop, None, seconds), seconds)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                self._transact(claim.free)
                return
        self.is_dropped = True

    def _waits(self, state: tenacity.RetryCallState) -> None:
        self.waits += 1
        self.progress.waiting(f"somebody holds the lock{self.whose()}")

    def whose(self) -> str:
        """Who has the table, for messages: a number that the server knows, where it tells."""
        found = None
        if self.table is not None:
            with suppress(DBAPIError), self.connection.begin():
                found = self.ways.holder(self.connection, self.table)
        return "" if found is None else f": {found}"

    def _lock_was_held(self, error: BaseException) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        return self._database.classify(error) in _AGAIN or self.ways.interrupted(error)

    @property
    def _database(self) -> Database:
        return database_of(self.connection.dialect)
