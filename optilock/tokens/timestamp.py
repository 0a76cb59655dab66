"""The server's time of the last write.

::

    class Page(Versioned, Base):
        __version_token__ = Timestamp(name="changed_at")

It shows people when the row was last written, and needs no clock of the application.

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
from typing import Any

from sqlalchemy import Column, ColumnDefault, ColumnElement, DateTime

from optilock.tokens.base import Token
from optilock.tokens.sql_functions import NextServerTime, ServerTime, UtcDateTime

__all__ = ["NextServerTime", "ServerTime", "Timestamp", "UtcDateTime"]


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
        if isinstance(kind, UtcDateTime):
            return True
        if not isinstance(kind, DateTime):
            return False
        if hasattr(kind, "fsp"):  # a type of MariaDB's
            return kind.__visit_name__ == "DATETIME" and kind.fsp == 6
        return bool(kind.timezone) and getattr(kind, "precision", None) in (None, 6)

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
