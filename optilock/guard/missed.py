"""A row that a write did not find as it was read, from the miss to the end of the flush."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import Attempt, Values, entry_of
from optilock.entry import Entry
from optilock.guard.writes import Write
from optilock.resolvers import Resolution

__all__ = ["Missed"]


@dataclass(eq=False)
class Missed:
    """Our attempt, what is stored instead, and what was decided about it."""

    write: Write
    state: InstanceState[Any]
    #: Held so that an object nobody else references lives until it is dirty again.
    obj: Any
    connection: Connection
    attempt: Attempt
    stored: Values | None
    #: Set where no resolver may settle the row (its version is NULL).
    problem: Exception | None = None
    resolution: Resolution | None = None
    #: Settled while the flush was still running: the row was inserted again.
    restored: bool = False

    @property
    def entry(self) -> Entry[Any]:
        return entry_of(self.attempt, self.stored)

    @property
    def gone(self) -> bool:
        return self.stored is None
