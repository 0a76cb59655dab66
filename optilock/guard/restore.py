"""Rows that are gone, settled while the flush is still running.

Children that the same flush inserts need their parent back before they come: when the resolver
wants a deleted row inserted again, that happens at the end of the batch that found it gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optilock.guard.corrections import insert_row
from optilock.guard.decide import decide
from optilock.guard.listeners import UPDATED
from optilock.guard.missed import Missed
from optilock.guard.refresh import equal_to_stored
from optilock.mapping.facts import facts

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["restore", "restore_gone"]


def restore_gone(flush: Flush, some: list[Missed]) -> None:
    """Insert again what others of the flush may refer to, if its resolver wants it back.

    Everything else waits for the end of the flush: nothing is corrected if one row is refused.
    """
    gone = [
        missed
        for missed in some
        if missed.gone
        and missed.attempt.action == "update"
        and missed.problem is None
        and _may_be_referred_to(flush, missed)
    ]
    if not gone:
        return
    if decide(gone, flush.known) is not None:
        return  # refused: said at the end, when all conflicts of the flush are known
    for missed in gone:
        if missed.resolution is not None and missed.resolution.decision != "keep_database":
            restore(flush, missed)


def _may_be_referred_to(flush: Flush, missed: Missed) -> bool:
    """Does this flush write rows with a foreign key to the row's tables?"""
    assert flush.uow is not None
    own = missed.state.mapper.tables
    if any(
        relationship.secondary is not None for relationship in missed.state.mapper.relationships
    ):
        return True
    return any(
        key.column.table in own and (table not in own or table is key.column.table)
        for mapper in flush.uow.mappers
        for table in mapper.tables
        for key in table.foreign_keys
    )


def restore(flush: Flush, missed: Missed) -> None:
    """Insert the row again; its object is then like any other that was written."""
    values = insert_row(missed.connection, missed)
    state = missed.state
    equal_to_stored(state, values, flush.uow)
    made = [n for n, c in facts(state.mapper).columns.items() if c.computed is not None]
    flush.expire_later.extend((state, name) for name in made if name in state.dict)
    missed.restored = True
    missed.written = UPDATED
