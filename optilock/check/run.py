"""All checks in order: classes, the driver and its settings, tables, rows, revisions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Mapper

from optilock.check import tables, triggers
from optilock.check.classes import check_mapping, check_rows, check_values
from optilock.check.findings import Finding, Severity, error, weakness_finding
from optilock.check.revisions import check_revisions, folders_of
from optilock.check.scopes import check_scopes
from optilock.check.subjects import CheckedTable, mappers_of, read_tables, subjects_of
from optilock.check.triggers import check_cascades, check_functions
from optilock.dialects import database_of
from optilock.dialects.catalogue import StoredTable
from optilock.dialects.engines import on_engine
from optilock.exactly_once.keys import option_in_use
from optilock.tables.names import commit_tokens, leases

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


#: The checks of each table. To add one, write a function that takes what was read of the table, and
#: name it in the list at the end of its file.
OF_TABLE: tuple[Callable[[CheckedTable], Iterator[Finding]], ...] = (
    *tables.ALL,
    *triggers.ALL,
)


def check(
    models: Any,
    engine: Engine | AsyncEngine,
    *,
    alembic: str | os.PathLike[str] | None = None,
) -> list[Finding]:
    """Return all findings, errors first.

    Args:
        models: a declarative base, a ``registry``, a mapped class, a module that has some, or a
            collection of these.
        engine: the database that the models are used on, made as the application makes it. An
            ``AsyncEngine`` where no event loop runs; inside of one ``await
            connection.run_sync(lambda c: check(models, c.engine))``.
        alembic: where Alembic's revisions are, which are looked at as well: its ``alembic.ini`` or
            ``pyproject.toml``, or a folder. None: nowhere.

    Raises:
        ConfigurationError: there are no mapped classes in ``models``, they cannot be configured, or
            an async engine is given where an event loop runs, or ``alembic`` leads to no revisions.
    """
    mappers = mappers_of(models)
    folders = [] if alembic is None else folders_of(alembic)
    found = on_engine(engine, lambda sync: _findings(mappers, sync), call="check")
    found += check_revisions(mappers, folders)
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _findings(mappers: Collection[Mapper[Any]], engine: Engine) -> list[Finding]:
    found = [*_mappings(mappers), *check_settings(engine)]
    with engine.connect() as connection:
        look = read_tables(connection, subjects_of(mappers))
        found += look.findings
        connection.rollback()
        found += (finding for one in look.seen for rule in OF_TABLE for finding in rule(one))
        found += check_rows(connection, look.seen)
        connection.rollback()
        found += check_cascades(connection, subjects_of(mappers))
        connection.rollback()
        found += check_functions(connection, subjects_of(mappers))
        connection.rollback()
        stored = look.stored()
        for mapper in mappers:
            found += check_values(connection, mapper, stored)
            connection.rollback()
        found += check_own_tables(connection)
        found += check_scopes(connection, mappers)
        connection.rollback()
    return found


def _mappings(mappers: Iterable[Mapper[Any]]) -> Iterator[Finding]:
    for mapper in mappers:
        yield from check_mapping(mapper)


def check_own_tables(connection: Connection) -> Iterator[Finding]:
    """Find optilock's own tables that are too old, or missing where units need them."""
    names = {commit_tokens.name, leases.name}
    stored = database_of(connection.dialect).catalogue(connection, None).tables(names)
    yield from _commit_tokens(stored.get(commit_tokens.name))
    found = stored.get(leases.name)
    if found is not None and found.cased_as("lease_holder") not in found.columns:
        yield error(
            "old-leases",
            leases.name,
            "The table of leases of names has no column lease_holder: each operation on the lease"
            " of a name is refused.",
            'Add it in a migration: op.upgrade_optilock_tables("leases", to=2).',
        )


def _commit_tokens(stored: StoredTable | None) -> Iterator[Finding]:
    name = commit_tokens.name
    call = 'op.{}_optilock_tables("commit_tokens", {}=2)'
    if stored is None:
        if option_in_use.seen:
            yield error(
                "no-commit-tokens",
                name,
                "There are units with exactly_once=, and the database has no table for their"
                " tokens: each of them is refused.",
                f"Create it in a migration: {call.format('create', 'revision')}.",
            )
    elif stored.cased_as("fingerprint") not in stored.columns:
        yield error(
            "old-commit-tokens",
            name,
            "The table of commit tokens has no column fingerprint: units with exactly_once= are"
            " refused.",
            f"Add it in a migration: {call.format('upgrade', 'to')}.",
        )


def check_settings(engine: Engine) -> Iterator[Finding]:
    """Check the driver, a connection, and the server."""
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
    if database.locks.autocommits(connection):
        yield error(
            "autocommit",
            "connection",
            "The engine runs in AUTOCOMMIT: every statement is stored at once, and a unit of work"
            " cannot take anything back.",
            'Make the engine without isolation_level="AUTOCOMMIT".',
        )
    for weakness in database.servers.weak_settings(connection):
        yield weakness_finding(weakness, "connection")
