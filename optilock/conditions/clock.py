"""The clock of the database, in conditions: leases end by it, and never by the client's.

:class:`Clock` is the time at which the database looks at a row. It is neither the begin of the
transaction (``now()`` of PostgreSQL) nor that of the statement (``NOW(6)`` of MariaDB): a writer
who has waited for the row looks at it late, and so does one who was stopped. It is UTC, whatever
the time zone of the session. Each engine says it in ``optilock/dialects``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, FunctionElement, bindparam
from sqlalchemy.ext.compiler import compiles

from optilock.errors import ConfigurationError
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["Clock", "Later", "later"]


class Clock(FunctionElement[Any]):
    """The time at which a row is looked at."""

    inherit_cache = True
    type = UtcDateTime()


class Later(FunctionElement[Any]):
    """A moment, and so many milliseconds after it."""

    inherit_cache = True
    type = UtcDateTime()


def later(moment: ColumnElement[Any], milliseconds: Any) -> Later:
    """``milliseconds``: a number, or SQL of one."""
    if isinstance(milliseconds, int):
        milliseconds = bindparam(None, milliseconds, type_=BigInteger())
    return Later(moment, milliseconds)


@compiles(Clock)
@compiles(Later)
def _on_another_database(element: Any, compiler: Any, **options: Any) -> str:
    """Each engine that can has its own rule in ``optilock/dialects``; this is for all others."""
    if compiler.dialect.name == "default":  # str(statement)
        return "CURRENT_TIMESTAMP"
    raise ConfigurationError(
        f"Leases work on PostgreSQL, MariaDB and SQLite, not on {compiler.dialect.name}: optilock"
        " does not know its clock."
    )
