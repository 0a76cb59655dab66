"""All checks, in the order in which a reader would ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper

from optilock.check.finding import Finding, Severity
from optilock.check.mapping import check_mapping
from optilock.check.models import mappers_of
from optilock.check.rows import check_rows, unreadable
from optilock.check.settings import check_settings
from optilock.check.stored import StoredTable, stored_table
from optilock.check.subject import Subject, subjects_of
from optilock.check.tables import check_table
from optilock.check.triggers import check_triggers
from optilock.check.values import check_values
from optilock.engines import on_engine

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["check"]

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
            except DBAPIError as error:
                found.append(unreadable(subject.table.fullname, error))
                connection.rollback()
                continue
            for look in _BY_TABLE:
                found.extend(look(connection, subject, stored[subject.table]))
                connection.rollback()
        for mapper in mappers:
            found.extend(check_values(connection, mapper, stored))
            connection.rollback()
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _mappings(mappers: Iterable[Mapper[Any]]) -> Iterator[Finding]:
    for mapper in mappers:
        yield from check_mapping(mapper)
