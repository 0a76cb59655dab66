"""A set of tables that belong together, and the way that leads there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import MetaData

__all__ = ["Step", "TableSet"]

#: ``do(op, schema)``, with Alembic's operations.
Do = Callable[[Any, str | None], None]


@dataclass(frozen=True)
class Step:
    """One revision further, and back."""

    upgrade: Do
    downgrade: Do


@dataclass(frozen=True)
class TableSet:
    """Tables of one feature.

    ``steps`` are never changed once they are released: what comes later is another step. ``tables``
    are as they stand after the last one.
    """

    name: str
    tables: MetaData
    steps: tuple[Step, ...]

    @property
    def revision(self) -> int:
        """The newest revision."""
        return len(self.steps)

    def table_names(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.tables.sorted_tables)
