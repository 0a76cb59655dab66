"""Foreign keys by which the database itself changes rows, and fires no trigger.

MariaDB's engine does ``ON UPDATE CASCADE`` and ``SET NULL`` by itself, so neither a guard trigger
nor that of a ``RowVersion`` sees it: the row has changed and its version has not. PostgreSQL and
SQLite fire them. One statement a schema, where a class has such a trigger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.check.findings import Finding, unreadable, warning
from optilock.check.subjects import Subject
from optilock.dialects import database_of
from optilock.dialects.base import Cascade
from optilock.schema import expected

__all__ = ["check_cascades"]


def check_cascades(connection: Connection, subjects: Iterable[Subject]) -> Iterator[Finding]:
    """Of tables whose versions a trigger moves, or guards."""
    by_schema: dict[str | None, set[str]] = {}
    for table, wanted in expected(subject.table for subject in subjects).items():
        if wanted.guard is not None or wanted.moves_by_trigger:
            by_schema.setdefault(table.schema, set()).add(table.name)
    database = database_of(connection.dialect)
    for schema, names in by_schema.items():
        try:
            found = database.silent_cascades(connection, schema)
        except DBAPIError as refusal:
            yield unreadable("foreign keys", refusal)
            connection.rollback()
            continue
        yield from (_finding(one, schema) for one in found if one.table in names)


def _finding(found: Cascade, schema: str | None) -> Finding:
    table = found.table if schema is None else f"{schema}.{found.table}"
    return warning(
        "silent-cascade",
        f"{table}.{found.column}",
        f"A change of {found.parent} changes the column by itself ({found.does}), and this database"
        " fires no trigger then: the version stays, and nobody who has read the row is told.",
        "Leave it to the program, which moves the version (ON UPDATE RESTRICT, ON DELETE RESTRICT;"
        " passive_deletes and passive_updates=False of the relationship).",
    )
