"""Servers of PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from optilock.dialects.postgresql.weak_settings import NO_BUMP, weak_settings
from optilock.dialects.servers import Servers


def _reported(driver: Any, parameter: str) -> str | None:
    """Return a parameter as the server last reported it; psycopg and asyncpg keep that."""
    if hasattr(driver, "get_settings"):
        return getattr(driver.get_settings(), parameter, None)
    ask = getattr(getattr(driver, "info", None), "parameter_status", None)
    return None if ask is None else ask(parameter)


class PostgreSQLServers(Servers):
    weak_settings = staticmethod(weak_settings)

    def is_out(self, connection: Connection, error: BaseException) -> bool:
        """A standby, which reports itself as one (from PostgreSQL 14).

        A role or a transaction that may only read has the same SQLSTATE, and would have it again.
        """
        if "25006" not in self.database.codes(error):
            return False
        return _reported(connection.connection.driver_connection, "in_hot_standby") == "on"

    def announce_no_bump(self, connection: Connection, *, on: bool) -> None:
        setting = select(func.set_config(NO_BUMP, "on" if on else "off", True))
        type(connection).execute(connection, setting)  # not through the guard of a running flush
