"""Children that missed and whose parent this flush deletes: settled before the parent goes.

Corrections wait for the end of the flush, but the parent's DELETE comes before that. A changed
child that is to be deleted all the same, or to lose its parent, must not refer to it any more by
then: a foreign key would refuse the DELETE, and ``ON DELETE CASCADE`` would take the child along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optilock.guard.decide import decide
from optilock.guard.doomed import kept_by_a_deleted_parent
from optilock.guard.missed import Missed
from optilock.guard.settle import carry_out

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["settle_children"]


def settle_children(flush: Flush, some: list[Missed]) -> None:
    """Carry out at once what was decided about the children of rows that this flush deletes.

    Where one is refused nothing is done: that is said at the end, when all conflicts are known.
    """
    children = [
        missed
        for missed in some
        if not missed.gone and missed.problem is None and kept_by_a_deleted_parent(flush, missed)
    ]
    if not children or decide(children, flush.known) is not None:
        return
    changed = [
        missed
        for missed in children
        if missed.resolution is not None and missed.resolution.decision != "keep_database"
    ]
    carry_out(flush, changed)
    for missed in changed:
        missed.restored = True
