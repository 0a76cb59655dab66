"""Can rows be locked here at all? What reads a row to judge it stands on that.

Some dialects of SQLAlchemy leave FOR UPDATE out without a word, because their database has no such
thing. There a row could change between the look and the write.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

from sqlalchemy import Select, Table, literal_column, select
from sqlalchemy.engine import Connection, Dialect

from optilock.errors import ConfigurationError

__all__ = ["Locks", "require_locks", "sends_for_update"]

_known: WeakKeyDictionary[Dialect, bool] = WeakKeyDictionary()


class Locks(Protocol):
    """What is asked of a database by whoever locks rows and looks at them."""

    def keys_at_once(self, width: int) -> int: ...
    def locks_rows(self, dialect: Dialect) -> bool: ...
    def autocommits(self, connection: Connection) -> bool: ...
    def begin_writing(self, connection: Connection, table: Table) -> None: ...
    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]: ...


def sends_for_update(dialect: Dialect) -> bool:
    """Does the dialect write the FOR UPDATE of ``with_for_update()``, or leave it out?"""
    found = _known.get(dialect)
    if found is None:
        plain: Select[Any] = select(literal_column("1"))
        locked = plain.with_for_update().compile(dialect=dialect)
        found = _known[dialect] = str(locked).strip() != str(plain.compile(dialect=dialect)).strip()
    return found


def require_locks(database: Locks, connection: Connection) -> None:
    """Refuse to read rows that must stay as they are, where nothing keeps them so.

    Raises:
        ConfigurationError: the database locks no rows, or every statement commits by itself.
    """
    if not database.locks_rows(connection.dialect):
        raise ConfigurationError(
            f"SQLAlchemy's dialect {connection.dialect.name!r} leaves FOR UPDATE out, so no row"
            " stays as it is until it is written. What looks at rows before it writes is refused"
            " there: CompareValues, verify() and expect(), deletes of rows with dependents, and"
            " update(Model) while the session holds objects of the class. Use a version column"
            " (Counter()), which each UPDATE compares by itself. Nothing was sent."
        )
    if database.autocommits(connection):
        raise ConfigurationError(
            "Rows were to be locked and looked at over a connection in AUTOCOMMIT mode, where a"
            " lock ends with its own statement. Give the session an engine without"
            ' isolation_level="AUTOCOMMIT". Nothing was sent.'
        )
