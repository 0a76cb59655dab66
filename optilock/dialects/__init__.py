"""Every difference between databases, one file each; features ask :func:`database_of`."""

from __future__ import annotations

from functools import cache

from sqlalchemy.engine import Dialect

from optilock.dialects.base import Database
from optilock.dialects.mariadb import MariaDB
from optilock.dialects.postgresql import PostgreSQL
from optilock.dialects.sqlite import SQLite

__all__ = ["Database", "database_of"]

_KNOWN: tuple[type[Database], ...] = (PostgreSQL, SQLite, MariaDB)


@cache
def _by_name(name: str) -> Database:
    for known in _KNOWN:
        if name in known.names:
            return known()
    return Database()


def database_of(dialect: Dialect) -> Database:
    """The answers for the database behind ``dialect``."""
    return _by_name(dialect.name)
