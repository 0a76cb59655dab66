"""Filling: batch after batch in the order of the keys, each a short transaction of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from optilock.dialects.rollout import Key, Target, Ways
from optilock.errors import OptilockError
from optilock.rollout.attempts import Attempts
from optilock.rollout.pace import Pace
from optilock.rollout.report import Progress

__all__ = ["Filler"]

#: Seconds between two looks at rows that somebody holds.
_LOOK_AGAIN = 0.2


@dataclass
class Filler:
    """Gives every row of a table a version, in as many passes as others make necessary."""

    connection: Connection
    target: Target
    ways: Ways
    pace: Pace
    attempts: Attempts
    progress: Progress
    #: Seconds to wait for rows that are held, without a row being filled meanwhile.
    patience: float
    filled: int = 0
    batches: int = 0

    def run(self) -> None:
        """Fill until no row is left.

        Raises:
            OptilockError: the rows that are left are held by others for longer than ``patience``.
        """
        moved = time.monotonic()
        while True:
            if self._pass():
                moved = time.monotonic()
            if not self._is_left():
                return
            if time.monotonic() - moved > self.patience:
                raise OptilockError(
                    f"Rows of {self.target.table.fullname} are still without a version, because"
                    f" another transaction has held them for more than {self.patience:g} seconds."
                    " What was filled stays filled; end that transaction and run the roll-out"
                    " again, it goes on from here."
                )
            self.progress.waiting("rows are held by another transaction")
            time.sleep(_LOOK_AGAIN)

    def _pass(self) -> int:
        """Once through the table; how many rows were filled."""
        before, after, size = self.filled, None, self.pace.first()
        while True:
            started = time.perf_counter()
            rows, after = self._batch(after, size)
            if after is None:
                return self.filled - before
            seconds = time.perf_counter() - started
            self.filled += rows
            self.batches += 1
            self.progress.filled(rows)
            size = self.pace.next(size, seconds)
            time.sleep(self.pace.rest(rows, seconds))

    def _batch(self, after: Key | None, size: int) -> tuple[int, Key | None]:
        return self.attempts.run(
            self.connection,
            f"write the rows of {self.target.table.fullname}",
            lambda: self.ways.fill(self.connection, self.target, after, size),
        )

    def _is_left(self) -> bool:
        left = self.ways.is_left(self.connection, self.target)
        self.connection.rollback()
        return left
