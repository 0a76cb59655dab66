"""Drivers and settings that make the check void, or weaker."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Engine
from sqlalchemy.engine import Connection

from optilock.check.finding import Finding, Severity
from optilock.dialects import database_of

__all__ = ["check_settings"]


def check_settings(engine: Engine) -> Iterator[Finding]:
    """Look at the driver, at a connection, and at the server."""
    if not engine.dialect.supports_sane_rowcount:
        yield Finding(
            "no-row-counts",
            Severity.ERROR,
            "connection",
            f"The driver {engine.dialect.driver!r} does not count rows: a lost update cannot be"
            " seen.",
            "Use a driver that does: psycopg, sqlite3, pymysql.",
        )
    # In a transaction: an engine may have its own way to begin one.
    with engine.connect() as connection, connection.begin():
        yield from _connection(connection)


def _connection(connection: Connection) -> Iterator[Finding]:
    database = database_of(connection.dialect)
    if database.autocommits(connection):
        yield Finding(
            "autocommit",
            Severity.ERROR,
            "connection",
            "The engine runs in AUTOCOMMIT: every statement is stored at once, and a unit of work"
            " cannot take anything back.",
            'Make the engine without isolation_level="AUTOCOMMIT".',
        )
    for code, severe, message, advice in database.weak_settings(connection):
        severity = Severity.ERROR if severe else Severity.WARNING
        yield Finding(code, severity, "connection", message, advice)
