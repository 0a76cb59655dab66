"""The guarded flush: watching sessions, holding writes, judging rows, settling conflicts."""

from optilock.guard.aftermath import capture, clear, conflict_after_rollback
from optilock.guard.check_promises import check_before_commit
from optilock.guard.state import is_watched, options
from optilock.guard.watching import watch

__all__ = [
    "capture",
    "check_before_commit",
    "clear",
    "conflict_after_rollback",
    "is_watched",
    "options",
    "watch",
]
