"""Do the stored rows have versions, and does each have its own where it should?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Uuid, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from optilock.check.finding import Finding, Severity
from optilock.check.stored import StoredTable
from optilock.check.subject import Subject

__all__ = ["check_rows", "unreadable"]


def check_rows(
    connection: Connection, subject: Subject, stored: StoredTable | None
) -> Iterator[Finding]:
    """Look for NULL and, in random tokens, for duplicates.

    The table is read only where it can have some: not for NULL in a column that is NOT NULL.
    """
    token = subject.version
    column = None if stored is None or token is None else stored.column(token)
    if token is None or column is None:
        return  # check_table says so
    name = f"{subject.table.fullname}.{token.name}"
    try:
        missing = _missing(connection, token) if column["nullable"] else 0
        repeated = _repeated(connection, token) if isinstance(token.type, Uuid) else 0
    except DBAPIError as error:
        yield unreadable(name, error)
        return
    if missing:
        yield Finding(
            "null-versions",
            Severity.ERROR,
            name,
            f"{_rows(missing, 'has', 'have')} no version: writing one of them is refused.",
            f"{subject.roll_out}: it fills them beside the writers.",
        )
    if repeated:
        yield Finding(
            "repeated-versions",
            Severity.WARNING,
            name,
            f"{repeated} random versions are carried by more than one row: something copies them.",
            "Look for INSERT … SELECT and for rows that are cloned with their version.",
        )


def _missing(connection: Connection, token: Column[Any]) -> int:
    counted = select(func.count()).select_from(token.table).where(token.is_(None))
    return connection.scalar(counted) or 0


def _repeated(connection: Connection, token: Column[Any]) -> int:
    groups = select(token).where(token.is_not(None)).group_by(token).having(func.count() > 1)
    return connection.scalar(select(func.count()).select_from(groups.subquery())) or 0


def _rows(number: int, has: str, have: str) -> str:
    return f"1 row {has}" if number == 1 else f"{number} rows {have}"


def unreadable(name: str, error: DBAPIError) -> Finding:
    """What the user of the connection may not look at."""
    return Finding(
        "unreadable",
        Severity.WARNING,
        name,
        f"It could not be read ({type(error.orig).__name__}), so nobody knows what is in it.",
        "Check as a user who may read the table.",
    )
