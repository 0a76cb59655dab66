"""Filling: batch after batch in the order of the keys, each a short transaction of its own.

How many rows a batch has, and how long the roll-out rests after it, is said by its pace
(:mod:`optilock.rollout.pace`). A transaction that meets a lock of others gives up at once, and is
tried again (:class:`Attempts`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import tenacity
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from optilock.dialects import Database, database_of
from optilock.dialects.causes import Cause
from optilock.dialects.connections import clear
from optilock.dialects.migrations import Key, Target, Ways
from optilock.errors import OptilockError
from optilock.rollout.claim import TERM, Claim
from optilock.rollout.pace import Pace
from optilock.rollout.report import Progress
from optilock.unit.backoff import full_jitter

#: Seconds between two looks at rows that somebody holds.
_LOOK_AGAIN = 0.2


@dataclass
class Filler:
    """Gives every row of a table a version, in as many passes as others make necessary."""

    attempts: Attempts
    target: Target
    pace: Pace
    filled: int = 0
    batches: int = 0

    def run(self) -> None:
        """Fill until no row is left.

        Raises:
            OptilockError: the rows that are left are held by others for longer than the patience,
                without a row being filled meanwhile; or nobody holds them, and they stay as they
                are.
        """
        moved = time.monotonic()
        while True:
            filled, found = self._pass()
            if filled:
                moved = time.monotonic()
            if not self._is_left():
                return
            if found and not filled:
                raise OptilockError(
                    f"Rows of {self.target.table.fullname} stay without a version: nobody holds"
                    " them, and the UPDATE that gives them one changes none of them. Usually a"
                    " trigger leaves them out (RETURN NULL, RAISE(IGNORE)), or a key is not equal"
                    " to itself (FLOAT on MariaDB). What was filled stays filled; give these rows"
                    " a version by hand, or switch the trigger off for as long as the roll-out"
                    " takes, and run it again, it goes on from here."
                )
            if time.monotonic() - moved > self.attempts.patience:
                raise OptilockError(
                    f"Rows of {self.target.table.fullname} are still without a version, because"
                    " another transaction has held them for more than"
                    f" {self.attempts.patience:g} seconds{self.attempts.whose()}. What was filled"
                    " stays filled; end that transaction and run the roll-out again, it goes on"
                    " from here."
                )
            whose = self.attempts.whose()
            self.attempts.progress.waiting(f"rows are held by another transaction{whose}")
            time.sleep(_LOOK_AGAIN)

    def _pass(self) -> tuple[int, bool]:
        """Once through the table; how many rows were filled, and whether there were free ones."""
        before, after, size = self.filled, None, self.pace.first()
        while True:
            started = time.perf_counter()
            rows, last = self._batch(after, size)
            if last is None or last == after:
                return self.filled - before, after is not None
            after = last
            seconds = time.perf_counter() - started
            self.filled += rows
            self.batches += 1
            self.attempts.progress.filled(rows)
            size = self.pace.next(size, seconds)
            self.attempts.rest(self.pace.rest(rows, seconds))

    def _batch(self, after: Key | None, size: int) -> tuple[int, Key | None]:
        return self.attempts.run(
            f"write the rows of {self.target.table.fullname}",
            lambda connection: self.attempts.ways.fill(connection, self.target, after, size),
        )

    def _is_left(self) -> bool:
        with self.attempts.connection.begin():
            return self.attempts.ways.is_left(self.attempts.connection, self.target)


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
