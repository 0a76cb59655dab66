"""Every difference between databases, one file each; features ask :func:`database_of`."""

from __future__ import annotations

from functools import cache

from sqlalchemy.engine import Dialect

from optilock.dialects.base import Database
from optilock.dialects.cause import error_chain, raised_by
from optilock.dialects.cockroachdb import CockroachDB
from optilock.dialects.duckdb import DuckDB
from optilock.dialects.firebird import Firebird
from optilock.dialects.mariadb import MariaDB
from optilock.dialects.mssql import SQLServer
from optilock.dialects.oracle import Oracle
from optilock.dialects.postgresql import PostgreSQL
from optilock.dialects.sqlite import SQLite

__all__ = [
    "Database",
    "database_of",
    "database_of_error",
]

_KNOWN: tuple[type[Database], ...] = (
    PostgreSQL,
    SQLite,
    MariaDB,
    CockroachDB,
    DuckDB,
    Firebird,
    Oracle,
    SQLServer,
)


@cache
def _by_name(name: str) -> Database:
    for known in _KNOWN:
        if name in known.names:
            return known()
    return Database()


def database_of(dialect: Dialect) -> Database:
    """The answers for the database behind ``dialect``."""
    return _by_name(dialect.name)


def database_of_error(error: BaseException | None) -> Database:
    """The answers for the database whose driver raised ``error`` (``DBAPIError.orig``).

    An error does not say which engine it came from, so its class's package decides, and then
    those of the errors it was raised from.
    """
    for one in error_chain(error):
        for known in _KNOWN:
            if raised_by(one, known.drivers):
                return _by_name(known.names[0])
    return Database()
