"""All checks, in the order in which a reader would ask; first of the driver and its settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper

from optilock.check.cascades import check_cascades
from optilock.check.classes import check_mapping, check_values
from optilock.check.findings import Finding, Severity, error, unreadable, weak
from optilock.check.subjects import StoredTable, Subject, mappers_of, stored_table, subjects_of
from optilock.check.tables import check_rows, check_table, check_triggers
from optilock.dialects import database_of
from optilock.engines import on_engine

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


#: What is looked at for each table.
_BY_TABLE: tuple[Callable[[Connection, Subject, StoredTable | None], Iterable[Finding]], ...] = (
    check_table,
    check_triggers,
    check_rows,
)


def check(models: Any, engine: Engine | AsyncEngine) -> list[Finding]:
    """Everything that is wrong or worth knowing, errors first.

    Args:
        models: a declarative base, a ``registry``, a mapped class, a module that has some, or a
            collection of these.
        engine: the database that the models are used on, made as the application makes it. An
            ``AsyncEngine`` where no event loop runs; inside of one ``await
            connection.run_sync(lambda c: check(models, c.engine))``.

    Raises:
        ConfigurationError: there are no mapped classes in ``models``, they cannot be configured, or
            an async engine is given where an event loop runs.
    """
    mappers = mappers_of(models)
    return on_engine(engine, lambda sync: _findings(mappers, sync), call="check")


def _findings(mappers: Collection[Mapper[Any]], engine: Engine) -> list[Finding]:
    found = [*_mappings(mappers), *check_settings(engine)]
    with engine.connect() as connection:
        stored: dict[Any, StoredTable | None] = {}
        for subject in subjects_of(mappers):
            try:
                stored[subject.table] = stored_table(connection, subject.table)
            except DBAPIError as refusal:
                found.append(unreadable(subject.table.fullname, refusal))
                connection.rollback()
                continue
            for look in _BY_TABLE:
                found.extend(look(connection, subject, stored[subject.table]))
                connection.rollback()
        found.extend(check_cascades(connection, subjects_of(mappers)))
        connection.rollback()
        for mapper in mappers:
            found.extend(check_values(connection, mapper, stored))
            connection.rollback()
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _mappings(mappers: Iterable[Mapper[Any]]) -> Iterator[Finding]:
    for mapper in mappers:
        yield from check_mapping(mapper)


def check_settings(engine: Engine) -> Iterator[Finding]:
    """Look at the driver, at a connection, and at the server."""
    if not engine.dialect.supports_sane_rowcount:
        yield error(
            "no-row-counts",
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
        yield error(
            "autocommit",
            "connection",
            "The engine runs in AUTOCOMMIT: every statement is stored at once, and a unit of work"
            " cannot take anything back.",
            'Make the engine without isolation_level="AUTOCOMMIT".',
        )
    for weakness in database.weak_settings(connection):
        yield weak(weakness, "connection")
