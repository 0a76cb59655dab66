"""How long a lock of MariaDB is waited for."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sqlalchemy import ColumnElement, Connection, Dialect, Update

from optilock.dialects.mariadb.pauses import BOUNDED_LOCKS, watch_marks
from optilock.dialects.waits import KeyValues, Wait, Waits
from optilock.errors import ConfigurationError


class MariaDBWaits(Waits):
    def waiting(self, connection: Connection, wait: Wait) -> AbstractContextManager[None]:
        if wait.milliseconds and not getattr(connection.dialect, "is_mariadb", False):
            raise ConfigurationError(
                "lock(timeout=...) needs FOR UPDATE WAIT n, which MySQL has not (MariaDB has):"
                " use nowait=True or skip_locked=True, or set innodb_lock_wait_timeout of the"
                " session. Nothing was sent."
            )
        return super().waiting(connection, wait)

    def pass_over_lock(self, connection: Connection, update: Update, keys: KeyValues) -> Update:
        """``innodb_lock_wait_timeout`` of the connection, which is closed afterwards.

        (https://mariadb.com/kb/en/innodb-system-variables/#innodb_lock_wait_timeout; MySQL waits
        for one second, its least)
        """
        connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
        return update

    def bound_locks(self, dialect: Dialect) -> ColumnElement[bool] | None:
        return BOUNDED_LOCKS if watch_marks(dialect) else None

    def has_brief_reads(self, dialect: Dialect) -> bool:
        """MariaDB has NOWAIT for shared locks in this form, and MySQL in another one."""
        return getattr(dialect, "is_mariadb", False)
