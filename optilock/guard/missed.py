"""A row that a write did not find as it was read, from the miss to the end of the flush."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column
from sqlalchemy.engine import Connection
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts.resolvers import Resolution
from optilock.entry import Entry
from optilock.errors import NotWritten
from optilock.mapping.facts import facts
from optilock.rows.sides import Attempt, Values, entry_of, expressions_of, has_moved

if TYPE_CHECKING:
    from optilock.guard.look import Stale

__all__ = ["Missed", "not_written"]


@dataclass(eq=False)
class Missed:
    """Our attempt, what is stored instead, and what was decided about it."""

    state: InstanceState[Any]
    #: Held so that an object nobody else references lives until it is dirty again.
    obj: Any
    connection: Connection
    attempt: Attempt
    #: All parameters as they were to be sent.
    params: Mapping[str, Any]
    stored: Values | None = None
    #: Set where no resolver may settle the row (its version is NULL, a trigger keeps it).
    problem: Exception | None = None
    resolution: Resolution | None = None
    #: Settled while the flush was still running: others of the flush depend on the row.
    restored: bool = False
    #: The event of what was written in the end, ``after_update`` or ``after_delete``, and whether
    #: the listeners were called for it.
    written: str | None = None
    told: bool = False
    #: The version was to move, whatever else changes.
    touched: bool = False
    #: SQL expressions among our new values, in every table of the row.
    expressions: Mapping[Column[Any], Any] = field(init=False)

    def __post_init__(self) -> None:
        self.expressions = expressions_of(self.state)

    @classmethod
    def found_before(cls, stale: Stale) -> Missed:
        """A row that was looked at before anything was written on its account."""
        found = cls(stale.state, stale.obj, stale.connection, stale.attempt, {})
        found.stored, found.problem = stale.stored, stale.problem
        return found

    @cached_property
    def entry(self) -> Entry[Any]:
        return entry_of(self.attempt, self.stored)

    @property
    def gone(self) -> bool:
        return self.stored is None


def not_written(missed: Missed) -> NotWritten | None:
    """The error of a row that is as it was read, and still was not written."""
    attempt, stored = missed.attempt, missed.stored
    if not facts(attempt.mapper).guarded or has_moved(attempt, stored):
        return None
    return NotWritten(
        f"{attempt.mapper.class_.__name__} {attempt.identity!r} could not be {attempt.action}d: the"
        " row is still as it was read, so nobody else was first. A trigger or a rule of the"
        f" database prevents the {attempt.action}: change that, or leave the row alone."
    )
