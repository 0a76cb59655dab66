"""A short transaction, tried again while others hold the lock that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.dialects import Database, database_of
from optilock.dialects.causes import Cause
from optilock.dialects.rollout import Ways
from optilock.errors import OptilockError
from optilock.rollout.report import Progress
from optilock.unit.backoff import full_jitter

__all__ = ["Attempts"]

T = TypeVar("T")
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
    waits: int = 0

    def run(self, what: str, work: Callable[[Connection], T]) -> T:
        """Do ``work``, which is to do ``what``, in a transaction, and commit.

        Raises:
            OptilockError: the lock was not to be had for as long as ``patience``, the user of the
                connection may not do that, or the database refused it for a reason of its own.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._lock_was_held),
            wait=full_jitter(0.1, 2.0),
            stop=tenacity.stop_after_delay(self.patience),
            before_sleep=self._waits,
            reraise=True,
        )
        try:
            result: T = retrying(self._once, work)
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
                f" {self.patience:g} seconds of trying: a transaction holds the table. What was"
                " done stays done; run the roll-out again when that transaction is over."
            ) from error
        return result

    def _once(self, work: Callable[[Connection], T]) -> T:
        with self.connection.begin():
            self.ways.begin(self.connection, self.lock_timeout)
            return work(self.connection)

    def _waits(self, state: tenacity.RetryCallState) -> None:
        self.waits += 1
        self.progress.waiting("somebody holds the lock")

    def _lock_was_held(self, error: BaseException) -> bool:
        return isinstance(error, DBAPIError) and self._database.classify(error) in _AGAIN

    @property
    def _database(self) -> Database:
        return database_of(self.connection.dialect)
