"""How many rows at a time, and how long to rest: values only.

A batch holds its row locks until it commits, so its size follows the time it takes. Between two
batches the roll-out rests for a multiple of the time that it worked, so it rests longer where
others keep the server busy; and longer still to keep a rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from optilock.errors import ConfigurationError

__all__ = ["Pace"]


@dataclass(frozen=True)
class Pace:
    """``seconds`` for a batch, its limits in rows, and rows a second at most."""

    seconds: float = 0.003
    smallest: int = 100
    largest: int = 5_000
    rate: float | None = None
    #: The part of the time that is spent working; the rest of it the processor is the writers'.
    share: float = 0.15

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise ConfigurationError(
                f"rate={self.rate!r}: write rows a second, more than 0, or None for no limit."
            )

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
