"""Conflicts, resolutions and retries of one editor, counted from ``optilock.events``.

A conflict is counted once: when the guarded flush reports it, or, where the database itself
refuses (a serialization failure, a deadlock), when the unit is sent into a retry without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optilock import Entry, events

__all__ = ["Tally", "counting"]


class Tally:
    """A listener that counts, and keeps the conflict that is best to tell."""

    def __init__(self) -> None:
        self.conflicts = 0
        self.resolved = 0
        self.retries = 0
        self.told: Entry[Any] | None = None
        self._reported = False

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Conflict(entries):
                self.conflicts += len(entries)
                self._reported = True
            case events.Resolved(entries):
                self.resolved += len(entries)
                self.told = self.told or _best(entries)
            case events.Retry():
                self.retries += 1
                self.conflicts += not self._reported
                self._reported = False
            case events.Committed():
                self._reported = False


@contextmanager
def counting() -> Iterator[Tally]:
    """Count what happens inside the block, in this process."""
    tally = events.listen(Tally())
    try:
        yield tally
    finally:
        events.unlisten(tally)


def _best(entries: tuple[Entry[Any], ...]) -> Entry[Any] | None:
    """An entry whose text both sides changed: it has the most to tell."""
    return next((entry for entry in entries if "body" in entry.conflicting), None)
