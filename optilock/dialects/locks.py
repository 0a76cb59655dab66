"""Rows that are locked, and whether they stay as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from optilock.dialects.feature import Feature
from optilock.dialects.waits import Wait
from optilock.errors import ConfigurationError

#: In ``connection.info``: the driver is in its autocommit mode, and the code that set this mode
#: begins a transaction where one is needed.
BEGINS = "optilock.begins"

_known: WeakKeyDictionary[sa.Dialect, bool] = WeakKeyDictionary()


def _sends_for_update(dialect: sa.Dialect) -> bool:
    """Return whether the dialect writes the FOR UPDATE of ``with_for_update()``."""
    found = _known.get(dialect)
    if found is None:
        plain: sa.Select[Any] = sa.select(sa.literal_column("1"))
        locked = plain.with_for_update().compile(dialect=dialect)
        found = _known[dialect] = str(locked).strip() != str(plain.compile(dialect=dialect)).strip()
    return found


class RowLocks(Feature):
    """How rows are locked, and whether they stay as they are."""

    def locks_rows(self, dialect: sa.Dialect) -> bool:
        """Return whether rows that :meth:`lock` reads stay unchanged until the transaction ends."""
        return _sends_for_update(dialect)

    def autocommits(self, connection: sa.Connection) -> bool:
        """Return whether every statement commits itself, so that nothing can be rolled back."""
        driver = connection.connection.dbapi_connection
        return getattr(driver, "autocommit", False) is True and BEGINS not in connection.info

    def begin_writing(self, connection: sa.Connection, table: sa.Table) -> None:
        """Ensure that rows read next stay unchanged until the transaction ends.

        Raises:
            ConfigurationError: it does not, because nothing can lock a row here, or because every
                statement commits by itself.
        """
        self.require(connection)

    def lock(self, query: sa.Select[Any], table: sa.Table, *, deleting: bool) -> sa.Select[Any]:
        """``query`` with its rows locked, as weakly as the write that follows allows."""
        return query.with_for_update(of=table, key_share=not deleting)

    def lock_within(self, query: sa.Select[Any], table: sa.Table, wait: Wait) -> sa.Select[Any]:
        """``query`` with its rows locked for an update, after so long a wait at most.

        Raises:
            ConfigurationError: optilock does not know the SQL for this database.
        """
        if not wait.usual:
            raise ConfigurationError(
                "lock() waits for a row here as the database is set up to: optilock does not know"
                " how to tell this database to wait less long. Leave nowait=, skip_locked= and"
                " timeout= out. Nothing was sent."
            )
        return self.lock(query, table, deleting=False)

    def share(
        self, query: sa.Select[Any], table: sa.Table, *, briefly: bool = False
    ) -> sa.Select[Any]:
        """``query`` with its rows locked against writers, and open to other readers.

        ``briefly``: without a wait, where no condition of the query limits it.
        """
        return query.with_for_update(of=table, read=True)

    #: Whether the database has one lock for all rows.
    one_lock: bool = False

    #: Whether a plain read may find a row that a locking read does not find.
    hides_from_locks: bool = False

    def may_hide_rows(self, connection: sa.Connection, tables: Iterable[Any]) -> bool:
        """Return whether a policy may hide rows of these tables, which then look deleted."""
        return False

    def require(self, connection: sa.Connection) -> None:
        """Refuse to read rows that must stay as they are, where nothing keeps them so.

        Raises:
            ConfigurationError: the database locks no rows, or every statement commits by itself.
        """
        if not self.locks_rows(connection.dialect):
            raise ConfigurationError(
                f"SQLAlchemy's dialect {connection.dialect.name!r} leaves FOR UPDATE out, or it"
                " locks nothing there: no row stays as it is until it is written. What looks at"
                " rows before it writes is refused: CompareValues, verify() and expect(), deletes"
                " of rows with dependents, and update(Model) while the session holds objects of the"
                " class. Use a version column (Counter()), which each UPDATE compares by itself."
                " Nothing was sent."
            )
        if self.autocommits(connection):
            raise ConfigurationError(
                "Rows were to be locked and looked at over a connection in AUTOCOMMIT mode, where a"
                " lock ends with its own statement. Give the session an engine without"
                ' isolation_level="AUTOCOMMIT". Nothing was sent.'
            )
