"""Fill rows batch after batch in the order of the keys, each batch in a short transaction.

A transaction that meets a lock of another one gives up at once and is tried again
(:mod:`optilock.rollout.attempts`).

A batch holds its row locks until it commits, so its size follows the time it takes
(:class:`Pace`). It does not become smaller than some hundred rows: on a busy machine the time goes
into waiting for a processor, and a smaller batch would not shorten that. Between two batches the
roll-out rests for a multiple of the time that it worked, so it rests longer where others keep the
server busy, and longer still to keep a rate. ``share`` and ``batch`` make it faster.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from optilock.dialects.migrations import Key, Target
from optilock.errors import ConfigurationError, OptilockError
from optilock.rollout.attempts import Attempts

#: The largest number of rows in a batch.
LARGEST = 10_000
#: The part of the time that is spent working; the rest of it the processor is free.
SHARE = 0.1


@dataclass(frozen=True)
class Pace:
    """``seconds`` for a batch, its limits in rows, and rows a second at most."""

    seconds: float = 0.003
    smallest: int = 500
    largest: int = 5_000
    rate: float | None = None
    share: float = SHARE

    def first(self) -> int:
        """Return the size of the first batch."""
        return self._within(500)

    def next(self, size: int, seconds: float) -> int:
        """Return the size after a batch of ``size`` that took ``seconds``; at most twice that."""
        if seconds <= 0:
            return self._within(2 * size)
        return self._within(min(2 * size, int(size * self.seconds / seconds)))

    def rest(self, rows: int, seconds: float) -> float:
        """Return the seconds to wait after a batch."""
        rest = seconds * (1 - self.share) / self.share
        if self.rate is None:
            return rest
        return max(rest, rows / self.rate - seconds)

    def _within(self, size: int) -> int:
        size = max(self.smallest, min(self.largest, size))
        return size if self.rate is None else max(1, min(size, int(self.rate)))


def pace_of(rate: float | None, batch: int | None, share: float) -> Pace:
    """Return the pace for the options of a roll-out.

    Raises:
        ConfigurationError: an option is no number, or out of range.
    """
    if rate is not None and not (_is_number(rate) and 0 < rate < math.inf):
        raise ConfigurationError(
            f"rate={rate!r}: write rows a second, more than 0, or None for no limit. Nothing was"
            " changed."
        )
    if not (_is_number(share) and 0 < share <= 1):
        raise ConfigurationError(
            f"share={share!r}: write the part of its time that the roll-out may work, more than 0"
            " and at most 1. Nothing was changed."
        )
    if batch is None:
        return Pace(rate=rate, share=share)
    if not (isinstance(batch, int) and _is_number(batch) and 1 <= batch <= LARGEST):
        raise ConfigurationError(
            f"batch={batch!r}: write a number of rows, 1 to {LARGEST:,}, or None for as many as"
            " take 3 milliseconds. Nothing was changed."
        )
    return Pace(rate=rate, share=share, smallest=batch, largest=batch)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


#: Seconds between two looks at rows that other transactions hold.
_LOOK_INTERVAL = 0.2


@dataclass
class Filler:
    """Gives every row of a table a version, in several passes if other transactions hold rows."""

    attempts: Attempts
    target: Target
    pace: Pace
    filled: int = 0
    batches: int = 0

    def run(self) -> None:
        """Fill until no row is left.

        Raises:
            OptilockError: other transactions hold the remaining rows for longer than the patience,
                in which no row was filled; or the rows are free and the UPDATE leaves them.
        """
        moved = time.monotonic()
        while True:
            filled, found = self._pass()
            if filled:
                moved = time.monotonic()
            if not self._is_left():
                return
            if found and not filled:
                raise self._unchanged()
            if time.monotonic() - moved > self.attempts.patience:
                raise self._held()
            owner = self.attempts.owner_label()
            self.attempts.progress.waiting(f"rows are held by another transaction{owner}")
            time.sleep(_LOOK_INTERVAL)

    def _unchanged(self) -> OptilockError:
        return OptilockError(
            f"Rows of {self.target.table.fullname} stay without a version: no transaction holds"
            " them, and the UPDATE that gives them one changes none of them. Usually a trigger"
            " leaves them out (RETURN NULL, RAISE(IGNORE)), or a key is not equal to itself (FLOAT"
            " on MariaDB). What was filled stays filled; give these rows a version by hand, or"
            " switch the trigger off for as long as the roll-out takes, and run it again, it goes"
            " on from here."
        )

    def _held(self) -> OptilockError:
        return OptilockError(
            f"Rows of {self.target.table.fullname} are still without a version, because another"
            f" transaction has held them for more than {self.attempts.patience:g} seconds"
            f"{self.attempts.owner_label()}. What was filled stays filled; end that transaction and"
            " run the roll-out again, it goes on from here."
        )

    def _pass(self) -> tuple[int, bool]:
        """Go through the table; return the number of filled rows, and whether any were free."""
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
        return self.attempts.look(self.attempts.ways.is_left, self.target)
