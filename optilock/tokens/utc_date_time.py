"""Moments to the microsecond, in UTC, the same on every database.

Databases differ in what they keep of a moment: MariaDB's ``DATETIME`` drops the fraction of a
second unless it is told not to, SQLite and MariaDB drop the zone. Here a value that is read is
always aware, in UTC, and equal to the one that was written.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, TypeDecorator
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError

__all__ = ["UtcDateTime"]


class UtcDateTime(TypeDecorator[datetime]):
    """``TIMESTAMP WITH TIME ZONE``, ``DATETIME(6)``, text with six digits: always aware, in UTC.

    Binding a naive ``datetime`` raises ``ConfigurationError``: it does not say which moment it is.
    """

    impl = DateTime
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(timezone=True)

    def __repr__(self) -> str:
        """What makes an equal type: migration scripts are written with it."""
        return f"{type(self).__name__}()"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return mysql.DATETIME(fsp=6)
        return DateTime(timezone=True)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigurationError(
                f"{value!r} has no time zone, so it is no moment: write datetime(..., tzinfo=UTC)."
            )
        moment = value.astimezone(UTC)
        return moment if dialect.name == "postgresql" else moment.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
