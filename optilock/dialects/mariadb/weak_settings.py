"""Settings that prevent or weaken the check of versions on MariaDB: one function for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, text

from optilock.dialects.catalogue import Weakness
from optilock.dialects.rows import misses_equal_rows

# -- of the connection and the server -------------------------------------------------------------


class Server(NamedTuple):
    """The settings that were read of a connection."""

    connection: Connection
    #: As ``SHOW VARIABLES`` gives them for this connection.
    variables: Mapping[str, str]


def weak_settings(connection: Connection) -> Iterator[Weakness]:
    """Yield the weaknesses in the settings of the driver and the server."""
    shown = connection.execute(text("SHOW VARIABLES"))
    server = Server(connection, {row[0]: row[1] for row in shown})
    for look in OF_SERVER:
        yield from look(server)


def counts_changed_rows(server: Server) -> Iterator[Weakness]:
    """Find a connection that counts changed rows instead of found rows."""
    if misses_equal_rows(server.connection):
        yield Weakness(
            "counts-changed-rows",
            True,
            "The connection counts the rows that an UPDATE changed, not those it found: a row"
            " that is written with the values it has counts as lost.",
            "Let SQLAlchemy make the connection, or give your creator= the flag CLIENT.FOUND_ROWS.",
        )


def no_snapshot_isolation(server: Server) -> Iterator[Weakness]:
    """Find a server that writes over rows which a snapshot does not show."""
    if server.variables.get("innodb_snapshot_isolation") != "ON":
        yield Weakness(
            "no-snapshot-isolation",
            False,
            "innodb_snapshot_isolation is off: at REPEATABLE READ a transaction writes over"
            " rows that its own snapshot does not show. Versioned rows are checked all the"
            " same; rows without a version are not.",
            "Turn it on (MariaDB 10.6.18, 10.11.8, 11.0.6 and later), or use"
            " optilock.repeatable_read(), which does for its own transactions.",
        )


def rollback_on_timeout(server: Server) -> Iterator[Weakness]:
    """Find a server that ends the whole transaction when a lock is waited for too long."""
    if server.variables.get("innodb_rollback_on_timeout") == "ON":
        yield Weakness(
            "rollback-on-timeout",
            False,
            "innodb_rollback_on_timeout is on: when a lock is waited for too long (1205), the whole"
            " transaction is rolled back, also outside of a savepoint. A program that catches the"
            " error gets TransactionEnded at its next statement, or at COMMIT.",
            "Turn it off (the server's default), or let the error out: the unit then runs again.",
        )


def node_of_a_cluster(server: Server) -> Iterator[Weakness]:
    """Find a node of a Galera cluster."""
    if server.variables.get("wsrep_on") == "ON":
        yield Weakness(
            "galera",
            False,
            "The server is a node of a Galera cluster (wsrep_on). Versions, touch(), and verify()"
            " with its UPDATE hold between nodes. Isolation levels, lock() and other locks of rows"
            " hold on one node only, and COMMIT reports a conflict with another node.",
            "See docs/how-to/operate/deployments.md: use versions where you would lock, and units"
            " that run again.",
        )


def old_reads(server: Server) -> Iterator[Weakness]:
    """Find a node whose reads do not wait for commits of other nodes."""
    waits = server.variables.get("wsrep_sync_wait", "0")
    if server.variables.get("wsrep_on") == "ON" and not int(waits) & 1:
        yield Weakness(
            "galera-old-reads",
            False,
            "wsrep_sync_wait is off: a unit that runs again on another node, or the next request of"
            " a client, may read rows as they were before the last COMMIT. No update is lost by"
            " that, but the unit conflicts once more.",
            "SET GLOBAL wsrep_sync_wait = 1, or send all requests of a client to one node.",
        )


OF_SERVER: tuple[Callable[[Server], Iterator[Weakness]], ...] = (
    counts_changed_rows,
    no_snapshot_isolation,
    rollback_on_timeout,
    node_of_a_cluster,
    old_reads,
)

# -- of one table ---------------------------------------------------------------------------------


class Stored(NamedTuple):
    """The facts that were read of one table."""

    name: str
    #: The storage engine; a view has none.
    engine: str | None

    def weaknesses(self) -> Iterator[Weakness]:
        for look in OF_TABLE:
            yield from look(self)


def no_transactions(table: Stored) -> Iterator[Weakness]:
    """Find a table whose writes cannot be rolled back."""
    if table.engine not in (None, "InnoDB"):
        yield Weakness(
            "no-transactions",
            True,
            f"The table's engine is {table.engine}, which has no transactions: nothing can be"
            " rolled back, and rows are not locked.",
            f"ALTER TABLE {table.name} ENGINE = InnoDB.",
        )


OF_TABLE: tuple[Callable[[Stored], Iterator[Weakness]], ...] = (no_transactions,)
