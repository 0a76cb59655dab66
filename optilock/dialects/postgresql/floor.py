"""Where a look for messages begins: not at the entries of the index that are dead.

Each receive moves its rows in the index and leaves their old entries behind, until a VACUUM, at the
place where the next look begins: 60,000 messages after the last VACUUM a look reads 500 pages. So a
look begins where the one before has ended. What is below that was received, or is locked by whoever
receives it; or it was committed after the look, by a slow sender or a receiver that has failed.
Those are found by a look from the beginning: once a second, and whenever there are fewer messages
than asked for.
"""

from __future__ import annotations

import time
from datetime import datetime

__all__ = ["BEGINNING", "Floor", "Low"]

#: The time, in UTC, and the number of a message: those after it are looked at.
Low = tuple[datetime, int]
#: Before all messages.
BEGINNING: Low = (datetime(1970, 1, 1), 0)
_SECONDS = 1.0


class Floor:
    """Of one queue, in one process; several threads may see an older one, which does no harm."""

    def __init__(self) -> None:
        self._low = BEGINNING
        self._since = 0.0

    def next(self) -> Low:
        """Where to begin now."""
        now = time.monotonic()
        if now - self._since > _SECONDS:
            self._low, self._since = BEGINNING, now
        return self._low

    def found(self, last: Low | None) -> None:
        """A look has ended at this one; ``None``: there were fewer than asked for."""
        self._low = BEGINNING if last is None else last
