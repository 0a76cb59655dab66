"""Asking the server at which isolation level a transaction really runs."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from optilock.errors import ConfigurationError

__all__ = ["require_level"]


def require_level(connection: Connection, level: str) -> None:
    """Ask the server for the level in force.

    Raises:
        ConfigurationError: it is another one than was asked for.
    """
    found = connection.get_isolation_level().upper()
    if found != level:
        raise ConfigurationError(
            f"the transaction should run at {level}, but {connection.dialect.name} says {found}:"
            " something else sets the level of this connection (an event listener, or"
            " isolation_level in the execution options of the session); remove it."
        )
