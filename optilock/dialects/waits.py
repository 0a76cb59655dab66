"""Which connections wait for a lock, and what a statement locks beyond the rows that it names."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

#: Levels at which a transaction keeps the snapshot of its first statement.
KEEP_SNAPSHOT = frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"})


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


def level_of(connection: Connection) -> str:
    """Return the isolation level by the connection's options, without a question."""
    level = connection.get_execution_options().get("isolation_level")
    return str(level or connection.default_isolation_level or "").upper()


class Waits:
    """The part of a database's class that concerns waits, asked by optilock.testing."""

    def reads_wait(self, connection: Connection) -> bool:
        """Return whether a plain read waits for rows that another transaction has locked."""
        return level_of(connection) == "SERIALIZABLE"

    def reach(self, connection: Connection) -> Reach:
        """Return what statements of the transaction concern; here: all that is possible."""
        return Reach(True, True, True, True, True)
