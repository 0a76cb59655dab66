"""All checks, in the order in which a reader would ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper

from optilock.check.finding import Finding, Severity
from optilock.check.mapping import check_mapping
from optilock.check.models import mappers_of
from optilock.check.rows import check_rows
from optilock.check.settings import check_settings
from optilock.check.tables import check_table

__all__ = ["check"]

#: What is looked at for each class, in the database.
_BY_CLASS: tuple[Callable[[Connection, Mapper[Any]], Iterable[Finding]], ...] = (
    check_table,
    check_rows,
)


def check(models: Any, engine: Engine) -> list[Finding]:
    """Everything that is wrong or worth knowing, errors first.

    Args:
        models: a declarative base, a ``registry``, a mapped class, a module that has some, or a
            collection of these.
        engine: the database that the models are used on, made as the application makes it.

    Raises:
        ConfigurationError: there are no mapped classes in ``models``, or the engine is async.
    """
    mappers = mappers_of(models)
    found = [*_mappings(mappers), *check_settings(engine)]
    with engine.connect() as connection:
        for mapper in mappers:
            for look in _BY_CLASS:
                found.extend(look(connection, mapper))
                connection.rollback()
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _mappings(mappers: Iterable[Mapper[Any]]) -> Iterator[Finding]:
    for mapper in mappers:
        yield from check_mapping(mapper)
