"""Levels of isolation on MariaDB."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from optilock.dialects.connections import undo_at_checkin
from optilock.dialects.isolation import IsolationLevels, Reach, level_of
from optilock.dialects.mariadb import galera
from optilock.dialects.mariadb.causes import number_of
from optilock.errors import ConfigurationError

#: ER_UNKNOWN_SYSTEM_VARIABLE
_NO_SUCH_VARIABLE = 1193


def _refuse_writes_over_the_snapshot(connection: sa.Connection) -> None:
    """Turn on ``innodb_snapshot_isolation`` for as long as the connection is ours.

    Without it REPEATABLE READ of InnoDB writes over rows that its own snapshot does not show
    (https://mariadb.com/kb/en/innodb-system-variables/#innodb_snapshot_isolation).
    """
    try:
        found = connection.exec_driver_sql("SELECT @@innodb_snapshot_isolation").scalar()
    except DBAPIError as error:
        if number_of(error.orig) != _NO_SUCH_VARIABLE:
            raise
        raise ConfigurationError(
            "this server has no innodb_snapshot_isolation (MariaDB 10.6.18, 10.11.8, 11.0.6 and"
            " later have it), so its REPEATABLE READ loses updates of rows without a version:"
            " use serializable(...), or a unit without isolation= and versioned models."
        ) from error
    if not found:
        connection.exec_driver_sql("SET SESSION innodb_snapshot_isolation = ON")
        undo_at_checkin(connection, "SET SESSION innodb_snapshot_isolation = OFF")


class MariaDBIsolationLevels(IsolationLevels):
    def begin_at(self, connection: sa.Connection, level: str, *, read_only: bool) -> None:
        if level == "SERIALIZABLE" and not read_only and galera.is_node(connection):
            raise ConfigurationError(galera.NOT_SERIALIZABLE)
        super().begin_at(connection, level, read_only=read_only)
        if level == "REPEATABLE READ" and not read_only:
            _refuse_writes_over_the_snapshot(connection)

    def begin_read_only(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("START TRANSACTION READ ONLY")

    #: START TRANSACTION READ ONLY is refused after XA START (XAER_RMFAIL).
    forbidden_in_two_phases = frozenset({"exactly_once", "read_only"})
    locks_show_newer = True  # at REPEATABLE READ, without innodb_snapshot_isolation

    def reach(self, connection: sa.Connection) -> Reach:
        """From REPEATABLE READ on, writes lock the gaps around their rows."""
        keeps = self.reads_snapshot(connection)
        return Reach(keeps, level_of(connection) == "SERIALIZABLE", keeps)
