"""The sentence by which SQLAlchemy tells of a stale row, at the head of our message.

Handlers, log filters and tests that were written for SQLAlchemy's own versioning know it::

    UPDATE statement on table 'pages' expected to update 3 row(s); 2 were matched.

The counts are those of the first statement of the flush that found fewer rows than it carried.
SQLAlchemy's advice to switch the check off for deletes is left out.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from sqlalchemy.orm.exc import StaleDataError

from optilock.conditions.write import Shape

__all__ = ["Short", "in_sqlalchemys_words"]

Stale = TypeVar("Stale", bound=StaleDataError)


class Short(NamedTuple):
    """A statement that matched fewer rows than were sent."""

    shape: Shape
    sent: int
    missed: int

    def __str__(self) -> str:
        verb = "delete" if self.shape.deletes else "update"
        return (
            f"{verb.upper()} statement on table '{self.shape.table.description}' expected to"
            f" {verb} {self.sent} row(s); {self.sent - self.missed} were matched."
        )


def in_sqlalchemys_words(error: Stale, short: Short | None) -> Stale:
    """The same error; its message now begins as SQLAlchemy's does."""
    if short is not None:
        error.args = (f"{short}\n{error.args[0]}", *error.args[1:])
    return error
