"""SQL functions that each database writes in its own way: its clock, and a random UUID.

``sql_functions`` of the database's class in ``optilock/dialects`` has the SQL. Its registry writes
it when a statement with such a function is compiled.

:class:`ServerTime` is the database's time at which it looks at a row. It is neither the begin of
the transaction (``now()`` of PostgreSQL) nor the begin of the statement (``NOW(6)`` of MariaDB): a
writer that has waited for a row looks at it late. It is UTC in every time zone of the session.
Leases end by it, never by the client's clock. :class:`StatementTime` is the begin of the statement:
databases do not use an index for a value that changes while they read it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError


class UtcDateTime(sa.TypeDecorator[datetime]):
    """``TIMESTAMP WITH TIME ZONE``, ``DATETIME(6)``, text with six digits: always aware, in UTC.

    Binding a naive ``datetime`` raises ``ConfigurationError``: it does not say which moment it is.
    """

    impl = sa.DateTime
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(timezone=True)

    def __repr__(self) -> str:
        """Return the call that makes an equal type: migration scripts contain it."""
        return f"{type(self).__name__}()"

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql

            return mysql.DATETIME(fsp=6)
        return sa.DateTime(timezone=True)

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigurationError(
                f"{value!r} has no time zone, so it is no moment: write datetime(..., tzinfo=UTC)."
            )
        moment = value.astimezone(UTC)
        return moment if dialect.name == "postgresql" else moment.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return in_utc(value)


#: The same moment without and with its zone: their difference to a time is the same.
_BEGIN, _BEGIN_IN_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)


def in_utc(value: datetime) -> datetime:
    """Return a time that was read in UTC. ``replace`` would take eight times as long."""
    if value.tzinfo is None:
        return _BEGIN_IN_UTC + (value - _BEGIN)
    return value.astimezone(UTC)


class DatabaseFunction(sa.FunctionElement[Any]):
    """A function whose SQL is in the folder of each database."""

    inherit_cache = True
    #: The text in ``str(statement)``, which is compiled for no database.
    shown: ClassVar[str] = "CURRENT_TIMESTAMP"
    #: For the error on other databases: what needs the function, and what to use instead.
    needed_for: ClassVar[tuple[str, str]]


class _Moment(DatabaseFunction):
    inherit_cache = True
    type = UtcDateTime()
    needed_for = (
        "Leases and Timestamp() work",
        ": use Counter() or Unique() as the token. optilock does not know its clock.",
    )


class ServerTime(_Moment):
    """The time at which the database looks at a row, to the microsecond or as fine as its clock."""

    inherit_cache = True


class NextServerTime(_Moment):
    """The server's time now, or the next possible moment after the moment in ``column``."""

    inherit_cache = True


class Later(_Moment):
    """A moment, and so many milliseconds after it."""

    inherit_cache = True


def add_milliseconds(moment: sa.ColumnElement[Any], milliseconds: Any) -> Later:
    """Return SQL of the moment so many ``milliseconds`` (a number, or SQL of one) after it."""
    if isinstance(milliseconds, int):
        milliseconds = sa.bindparam(None, milliseconds, type_=sa.BigInteger())
    return Later(moment, milliseconds)


class StatementTime(_Moment):
    """The begin of the statement, in UTC."""

    inherit_cache = True
    needed_for = ("A queue works", ": optilock does not know its clock.")


class RandomUuid(DatabaseFunction):
    """A UUID that the server makes."""

    inherit_cache = True
    type = sa.Uuid()
    shown = "gen_random_uuid()"
    needed_for = ("SQL makes random versions", ": a migration has to make them.")
