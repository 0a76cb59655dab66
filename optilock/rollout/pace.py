"""How fast a roll-out works: rows a batch, and the rests between two batches.

A batch holds its row locks until it commits, so its size follows the time it takes. It does not
become smaller than some hundred rows: on a busy machine it is the waiting for a processor that
takes the time, and less to do would make that no shorter. Between two batches the roll-out rests
for a multiple of the time that it worked, so it rests longer where others keep the server busy; and
longer still to keep a rate. Who wants it faster says which share of the time it may work, and how
many rows a batch has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optilock.errors import ConfigurationError

__all__ = ["LARGEST", "SHARE", "Pace", "pace_of"]

#: Rows of a batch: as many as the user may ask for.
LARGEST = 10_000
#: The part of the time that is spent working; the rest of it the processor is the writers'.
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
        """The size of the first batch."""
        return self._within(500)

    def next(self, size: int, seconds: float) -> int:
        """The size after a batch of ``size`` that took ``seconds``; at most twice as many."""
        if seconds <= 0:
            return self._within(2 * size)
        return self._within(min(2 * size, int(size * self.seconds / seconds)))

    def rest(self, rows: int, seconds: float) -> float:
        """Seconds to wait after a batch."""
        rest = seconds * (1 - self.share) / self.share
        if self.rate is None:
            return rest
        return max(rest, rows / self.rate - seconds)

    def _within(self, size: int) -> int:
        size = max(self.smallest, min(self.largest, size))
        return size if self.rate is None else max(1, min(size, int(self.rate)))


def pace_of(rate: float | None, batch: int | None, share: float) -> Pace:
    """As the user asks.

    Raises:
        ConfigurationError: for what is no number, or one that makes no sense.
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
