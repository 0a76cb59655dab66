"""How a transaction begins at a level of isolation, and what its reads and writes meet there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from optilock.dialects.feature import Feature
from optilock.errors import ConfigurationError

#: Levels at which a transaction keeps the snapshot of its first statement.
_KEEP_SNAPSHOT = frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"})


@dataclass(frozen=True)
class Reach:
    """The reach of a transaction's statements beyond the rows that they name."""

    #: The first statement decides what all later ones see.
    keeps_snapshot: bool = False
    #: Rows that are read are locked, or count as such.
    locks_reads: bool = False
    #: A write locks more than its rows: it counts as one of the whole table.
    locks_tables: bool = False
    #: The verdict on one COMMIT depends on the other COMMITs before it.
    orders_commits: bool = False
    #: A COMMIT that waits keeps out all readers.
    stops_readers: bool = False


def level_of(connection: sa.Connection) -> str:
    """Return the isolation level by the connection's options, without a question."""
    level = connection.get_execution_options().get("isolation_level")
    return str(level or connection.default_isolation_level or "").upper()


class IsolationLevels(Feature):
    """The levels of isolation of one database, as its transactions keep them."""

    def level_options(self, level: str) -> dict[str, Any]:
        """Engine execution options with which every connection begins at ``level``."""
        return {"isolation_level": level}

    def begin_at(self, connection: sa.Connection, level: str, *, read_only: bool) -> None:
        """Bring the transaction that has just begun to ``level``, and ask whether it is there.

        Raises:
            ConfigurationError: the server reports another level.
        """
        found = connection.get_isolation_level().upper()
        if found != level:
            raise ConfigurationError(
                f"the transaction should run at {level}, but {connection.dialect.name} reports"
                f" {found}: something else sets the level of this connection (an event listener, or"
                " isolation_level in the execution options of the session); remove it."
            )

    def take_snapshot(self, connection: sa.Connection, level: str, *, read_only: bool) -> None:
        """Take the unit's snapshot now, where :meth:`begin_at` has not done it.

        A server does so with the first statement of the unit.
        """

    def begin_read_only(self, connection: sa.Connection) -> None:
        """Make the database refuse every write of the transaction that has just begun."""
        raise ConfigurationError(
            f"optilock does not know how to make a transaction of {connection.dialect.name}"
            " read-only: leave read_only=True out."
        )

    def begin_savepoints(self, connection: sa.Connection) -> None:
        """See to it that a savepoint of this transaction never commits by itself."""

    #: Options of units that a transaction in two phases cannot have. The token of ``exactly_once``
    #: goes with the one COMMIT of a unit.
    forbidden_in_two_phases: frozenset[str] = frozenset({"exactly_once"})

    def reads_snapshot(self, connection: sa.Connection) -> bool:
        """Return whether writing a row that others have changed ends this transaction.

        No statement is sent: the level that SQLAlchemy has set counts.
        """
        return level_of(connection) in _KEEP_SNAPSHOT

    def shows_newest_after_miss(self, connection: sa.Connection) -> bool:
        """Return whether plain reads after a missed write show what others have written."""
        return not self.reads_snapshot(connection)

    #: Whether a locking read may show a row that the transaction's plain reads do not show.
    locks_show_newer: bool = False

    def reads_wait(self, connection: sa.Connection) -> bool:
        """Return whether a plain read waits for rows that another transaction has locked."""
        return level_of(connection) == "SERIALIZABLE"

    def reach(self, connection: sa.Connection) -> Reach:
        """Return what statements of the transaction concern; here: all that is possible."""
        return Reach(True, True, True, True, True)
