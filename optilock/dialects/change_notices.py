"""The triggers that notify listeners of rows that were changed (:mod:`optilock.live`).

A notice names rows and columns, and has no value besides keys. On a database without notifications
there is no trigger: versions are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from optilock.dialects.migrations import Found
from optilock.tokens.guard_trigger import short_name

_PREFIX = "optilock_notice_"
#: The channel on which notices are sent.
CHANNEL = "optilock_changes"


@dataclass(frozen=True)
class ChangeNotice:
    """The triggers of one table."""

    table: str
    schema: str | None = None

    def name(self, event: str) -> str:
        """The name of the trigger of an event; of their function for no event."""
        return short_name(f"{_PREFIX}{event.lower()}{'_' if event else ''}{self.table}")


def is_notice(name: str) -> bool:
    """Return whether this is the name of such a trigger."""
    return name.startswith(_PREFIX)


class ChangeNotices:
    """The statements of one database; none where nothing can be notified."""

    def __init__(self, dialect: sa.Dialect) -> None:
        self.dialect = dialect

    def create(self, made: ChangeNotice) -> tuple[str, ...]:
        """Return statements that make the triggers, also in the place of others."""
        return ()

    def drop(self, made: ChangeNotice) -> tuple[str, ...]:
        """Return statements that drop them, if they are there."""
        return ()

    def is_made(self, made: ChangeNotice, found: Iterable[Found]) -> bool:
        """Return whether the table has the triggers that :meth:`create` makes, and they fire."""
        return True

    def notifies(self, connection: sa.Connection, table: sa.Table) -> bool:
        """Return whether changes of the table's rows are notified."""
        return False
