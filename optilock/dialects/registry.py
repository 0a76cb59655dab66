"""The databases that optilock knows: by the name of SQLAlchemy's dialect, and by an error's driver.

A module of :data:`MODULES` is imported when a dialect, an error or a statement of its database is
met. A program adds an engine of its own with :func:`register`. A :class:`DatabaseFunction` in a
statement is written as its database has it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Dialect
from sqlalchemy.ext.compiler import compiles

from optilock._undocumented.connections import doubles_percents
from optilock.dialects.base import Database
from optilock.dialects.causes import error_chain, is_raised_by
from optilock.errors import ConfigurationError
from optilock.tokens.sql_functions import DatabaseFunction

D = TypeVar("D", bound=Database)


class Module(NamedTuple):
    """The ``names`` and ``drivers`` of the classes in one module, known before it is imported."""

    names: tuple[str, ...]
    drivers: tuple[str, ...]


MODULES = {
    "postgresql": Module(
        ("postgresql",),
        ("psycopg", "psycopg2", "asyncpg", "sqlalchemy.dialects.postgresql.asyncpg", "pg8000"),
    ),
    "mariadb": Module(
        ("mysql", "mariadb"),
        ("pymysql", "MySQLdb", "mysql", "mariadb", "asyncmy", "aiomysql", "cymysql"),
    ),
    "sqlite": Module(("sqlite",), ("sqlite3", "aiosqlite", "pysqlcipher3", "sqlcipher3")),
    "known_by_codes": Module(
        ("cockroachdb", "yugabytedb", "auroradsql", "duckdb", "firebird", "mssql", "oracle"),
        (
            *("duckdb", "_duckdb", "firebird.driver", "fdb"),
            *("pyodbc", "pymssql", "_mssql", "mssql_python", "sqlalchemy.connectors.aioodbc"),
            *("oracledb", "cx_Oracle", "sqlalchemy.dialects.oracle"),
        ),
    ),
}

#: The library's own come first, whenever they are imported: a program cannot replace them.
_library: list[type[Database]] = []
_added: list[type[Database]] = []


def register(kind: type[D]) -> type[D]:
    """Let ``kind`` answer for the databases of its ``names``, and the errors of its ``drivers``."""
    ours = kind.__module__.startswith(f"{__package__}.")
    (_library if ours else _added).append(kind)
    _by_name.cache_clear()
    return kind


def _load(module: str) -> None:
    import_module(f"{__package__}.{module}")


@cache
def _by_name(name: str) -> Database:
    for module, known in MODULES.items():
        if name in known.names:
            _load(module)
    return next((kind() for kind in (*_library, *_added) if name in kind.names), Database())


def database_of(dialect: Dialect) -> Database:
    """The answers for the database behind ``dialect``."""
    return _by_name(dialect.name)


@compiles(DatabaseFunction)
def _written(element: DatabaseFunction, compiler: Any, **options: Any) -> str:
    dialect = compiler.dialect
    if dialect.name == "default":
        return element.shown
    template = database_of(dialect).values.sql_functions.get(type(element))
    if template is None:
        feature, instead = element.needed_for
        raise ConfigurationError(
            f"{feature} on PostgreSQL, MariaDB and SQLite, not on {dialect.name}{instead}"
        )
    if doubles_percents(dialect):
        template = template.replace("%", "%%")
    arguments = (compiler.process(one, **options) for one in element.clauses)
    return str(template.format(*arguments))


def unwrapped_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors of a failed connect that SQLAlchemy may not have wrapped.

    Most errors of these classes do not come from a database: ``is_transient`` distinguishes them.
    """
    for module in MODULES:  # the driver may be imported only after this
        _load(module)
    return tuple(one for kind in (*_library, *_added) for one in kind().unwrapped())


def database_of_error(error: BaseException | None) -> Database:
    """The answers for the database whose driver raised ``error`` (``DBAPIError.orig``).

    An error does not name its engine, so its class's package decides, and then the packages of the
    errors it was raised from.
    """
    for one in error_chain(error):
        for module, known in MODULES.items():
            if is_raised_by(one, known.drivers):
                _load(module)
        for kind in (*_library, *_added):
            if is_raised_by(one, kind.drivers):
                return _by_name(kind.names[0])
    return Database()
