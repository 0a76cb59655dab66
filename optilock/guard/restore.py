"""Rows that are gone, settled while the flush is still running.

Children that the same flush inserts need their parent back before they come: when the resolver
wants a deleted row inserted again, that happens at the end of the batch that found it gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optilock.guard.corrections import insert_row
from optilock.guard.decide import decide
from optilock.guard.missed import Missed
from optilock.guard.refresh import equal_to_stored

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["restore", "restore_gone"]


def restore_gone(flush: Flush, some: list[Missed]) -> None:
    """Insert again what its resolver wants back; everything else waits for the end of the flush."""
    gone = [m for m in some if m.gone and m.attempt.action == "update" and m.problem is None]
    if not gone:
        return
    if decide(gone, flush.on_conflict) is not None:
        return  # refused: said at the end, when all conflicts of the flush are known
    for missed in gone:
        if missed.resolution is not None and missed.resolution.decision != "keep_database":
            restore(flush, missed)


def restore(flush: Flush, missed: Missed) -> None:
    """Insert the row again; its object is then like any other that was written."""
    values = insert_row(missed.connection, missed)
    equal_to_stored(missed.state, values, flush.uow)
    missed.restored = True
