"""Rows that only keep a deduplication key, removed when their time is over.

A message with a key leaves such a row when it is deleted. A receive removes those whose window has
ended, about once in each window, in a statement of its own: 1,000 of the oldest at a time.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection

from optilock.dialects.queue_sql import Messages

#: Rows that are looked at.
_MOST = 1_000
#: Seconds between two looks.
_LEAST, _LONGEST = 1.0, 60.0


class KeptKeys:
    """The removal of one queue's keys, in one process."""

    def __init__(self, window: int) -> None:
        """``window`` is in milliseconds; without one there are only keys of earlier settings."""
        self._pause = max(_LEAST, min(window / 1000, _LONGEST)) if window else _LONGEST
        self._due = time.monotonic() + self._pause

    def remove_ended(self, store: Messages, connection: Connection) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._pause
        if ended := store.ended_keys(connection, _MOST):
            with store.atomic(connection):
                store.remove_keys(connection, ended)
