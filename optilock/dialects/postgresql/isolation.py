"""Levels of isolation on PostgreSQL."""

from __future__ import annotations

from sqlalchemy import Connection

from optilock.dialects.isolation import IsolationLevels, Reach, level_of


class PostgreSQLIsolationLevels(IsolationLevels):
    def begin_read_only(self, connection: Connection) -> None:
        """For this transaction alone.

        After ``postgresql_readonly`` SQLAlchemy leaves READ WRITE on the pooled connection, which
        overrules ``default_transaction_read_only``, and which a standby refuses.
        """
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def reads_wait(self, connection: Connection) -> bool:
        return False

    def reach(self, connection: Connection) -> Reach:
        """At SERIALIZABLE the verdict depends on all reads and on the order of all commits."""
        strict = level_of(connection) == "SERIALIZABLE"
        return Reach(self.reads_snapshot(connection), strict, strict, strict)
