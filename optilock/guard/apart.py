"""A version that is not in the table which is written first (joined tables).

The base table of such a row would be written before its version is checked, so the rows are locked
and looked at before the first statement of that table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapper

from optilock.guard.look import look
from optilock.guard.missed import Missed

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["look_at_other_tables"]


def look_at_other_tables(flush: Flush, table: Any) -> None:
    """Judge the rows whose base table is ``table`` and whose version is elsewhere, once a flush."""
    assert flush.uow is not None
    if table in flush.looked_apart:
        return
    flush.looked_apart |= {table}
    states = [
        state
        for mapper, some in flush.uow.mappers.items()
        if _version_apart(mapper) and table is mapper.base_mapper.local_table
        for state in some
        if state.modified and not flush.is_delete(state)
    ]
    found = look(flush.session, states, deleting=False) if states else []
    flush.skipped |= {stale.state for stale in found}
    for stale in found:
        flush.add_miss(Missed.found_before(stale))


def _version_apart(mapper: Mapper[Any]) -> bool:
    token = mapper.version_id_col
    return token is not None and token.table is not mapper.base_mapper.local_table
