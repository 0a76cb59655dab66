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

__all__ = ["BEGINNING", "Floor"]

#: Before all messages.
BEGINNING = datetime(1970, 1, 1)
_SECONDS = 1.0


class Floor:
    """Of one queue, in one process; several threads may see an older one, which does no harm."""

    def __init__(self) -> None:
        self._low = BEGINNING
        self._since = 0.0

    def next(self) -> datetime:
        """The least ``visible_at`` to look at now, in UTC."""
        now = time.monotonic()
        if now - self._since > _SECONDS:
            self._low, self._since = BEGINNING, now
        return self._low

    def found(self, last: datetime | None, *, all_of_them: bool) -> None:
        """A look has ended: at ``last``, if there were as many as asked for."""
        self._low = last if all_of_them and last is not None else BEGINNING
