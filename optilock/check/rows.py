"""Do the stored rows have versions, and does each have its own where it should?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Table, Uuid, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper

from optilock.check.finding import Finding, Severity

__all__ = ["check_rows"]


def check_rows(connection: Connection, mapper: Mapper[Any]) -> Iterator[Finding]:
    """Look for NULL and, in random tokens, for duplicates. Reads the table once for each."""
    token: Any = mapper.version_id_col
    table = mapper.local_table
    if not isinstance(token, Column) or not isinstance(table, Table) or token.table is not table:
        return
    subject = f"{table.fullname}.{token.name}"
    try:
        missing = _missing(connection, token)
        repeated = _repeated(connection, token) if isinstance(token.type, Uuid) else 0
    except DBAPIError:
        return  # there is no such table or column, which check_table says
    if missing:
        yield Finding(
            "null-versions",
            Severity.ERROR,
            subject,
            f"{missing} rows have no version: writing one of them is refused.",
            f"Run optilock migrate {table.name} --url …, which fills them beside the writers.",
        )
    if repeated:
        yield Finding(
            "repeated-versions",
            Severity.WARNING,
            subject,
            f"{repeated} random versions are carried by more than one row: something copies them.",
            "Look for INSERT … SELECT and for rows that are cloned with their version.",
        )


def _missing(connection: Connection, token: Column[Any]) -> int:
    counted = select(func.count()).select_from(token.table).where(token.is_(None))
    return connection.scalar(counted) or 0


def _repeated(connection: Connection, token: Column[Any]) -> int:
    groups = select(token).where(token.is_not(None)).group_by(token).having(func.count() > 1)
    return connection.scalar(select(func.count()).select_from(groups.subquery())) or 0
