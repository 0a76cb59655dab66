"""The server's time of the last write.

::

    class Page(Versioned, Base):
        __version_token__ = Timestamp(name="changed_at")

It tells people when the row was last written, and needs no clock of the application.

The trap of times as tokens is their resolution: two writes in one tick would have the same
version, and the second writer would not be noticed. So the new version is the server's time *or the
next possible moment after the old version*, whichever is later (:class:`NextServerTime`). It always
moves forward, also when the server's clock is set back. For the same reason it is the time of the
statement and not of the transaction (``now()`` in PostgreSQL).

What it cannot see: a row that is deleted and made again under the same key while the clock is set
back, or within one millisecond on SQLite, whose clock has no finer one.

Databases differ in what they keep of a moment: MariaDB's ``DATETIME`` drops the fraction of a
second unless the type demands it, SQLite and MariaDB drop the zone. A column of
:class:`UtcDateTime` gives every value back as it was written: aware, in UTC, to the microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnDefault,
    ColumnElement,
    DateTime,
    Dialect,
    FunctionElement,
    TypeDecorator,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError
from optilock.tokens.base import Token

__all__ = ["NextServerTime", "ServerTime", "Timestamp", "UtcDateTime"]


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


class ServerTime(FunctionElement[Any]):
    """The server's time now, to the microsecond or as fine as its clock is."""

    inherit_cache = True
    type = UtcDateTime()


class NextServerTime(FunctionElement[Any]):
    """The server's time now, or the next possible moment after that in ``column``."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(ServerTime)
@compiles(NextServerTime)
def _on_another_database(element: Any, compiler: Any, **options: Any) -> str:
    """Each engine that can has its own rule in ``optilock/dialects``; this is for all others."""
    if compiler.dialect.name == "default":  # str(statement)
        return "CURRENT_TIMESTAMP"
    raise ConfigurationError(
        f"Timestamp() works on PostgreSQL, MariaDB and SQLite, not on {compiler.dialect.name}: use"
        " Counter() or Unique(), which work everywhere."
    )


@dataclass(frozen=True)
class Timestamp(Token):
    """The server's time of the last write, aware and in UTC; it moves forward with every write."""

    made_by = "database"
    option = "timestamp"
    told_by_type = True

    def type(self) -> UtcDateTime:
        return UtcDateTime()

    def accepts(self, column: Column[Any]) -> bool:
        """To the microsecond and with a zone; other types would give two writes one version."""
        kind = column.type
        if isinstance(kind, (UtcDateTime, mysql.DATETIME)):
            return isinstance(kind, UtcDateTime) or kind.fsp == 6
        if isinstance(kind, mysql.TIMESTAMP) or not isinstance(kind, DateTime):
            return False
        precise = not isinstance(kind, postgresql.TIMESTAMP) or kind.precision in (None, 6)
        return bool(kind.timezone) and precise

    def take(self, column: Column[Any]) -> None:
        """The column gets the server's time at INSERT and UPDATE, and one type everywhere."""
        for what, element in (("default", ServerTime()), ("onupdate", NextServerTime(column))):
            declared: Any = getattr(column, what)
            if declared is not None and not isinstance(declared.arg, type(element)):
                raise self._alone(column, what)
            setattr(column, what, ColumnDefault(element, for_update=what == "onupdate"))
        column.type = self.type()

    def first(self) -> ColumnElement[Any]:
        return ServerTime()

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any]:
        return NextServerTime(old)
