"""Keys by the zipf distribution of YCSB: few are wanted often, and many seldom."""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate

__all__ = ["Zipf"]


class Zipf:
    """Keys 1 to ``rows``; the n-th most wanted is wanted ``1 / n ** theta`` as often as the first.

    Which key is the n-th is drawn once, so that neighbours are not wanted equally often.
    """

    def __init__(self, rows: int, theta: float = 0.99) -> None:
        self._sums = list(accumulate(1 / rank**theta for rank in range(1, rows + 1)))
        self._keys = random.Random(rows).sample(range(1, rows + 1), rows)

    def key(self, chance: random.Random) -> int:
        """One key."""
        return self._keys[bisect(self._sums, chance.random() * self._sums[-1])]
