"""Locks of rows, and how long another transaction's lock is waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Select,
    Table,
    Update,
)
from sqlalchemy.exc import DBAPIError

from optilock.dialects.causes import Cause, ErrorCodes
from optilock.dialects.rows import (
    ask_with_hint,
    execute_unguarded,
    require_locks,
    sends_for_update,
)
from optilock.errors import ConfigurationError

#: Columns of a row's key, and what they are equal to.
KeyValues = Mapping[Column[Any], ColumnElement[Any]]
#: In ``connection.info``: the driver is in its autocommit mode, and the code that set this mode
#: begins a transaction where one is needed.
BEGINS = "optilock.begins"


#: Seconds for which a transaction with locks that were only learned may send nothing.
LONGEST_PAUSE = 0.9


class RowLocks(ErrorCodes):
    """The part of a database's class that concerns locks."""

    def locks_rows(self, dialect: Dialect) -> bool:
        """Return whether rows that :meth:`lock` reads stay unchanged until the transaction ends."""
        return sends_for_update(dialect)

    def autocommits(self, connection: Connection) -> bool:
        """Return whether every statement commits itself, so that nothing can be rolled back."""
        driver = connection.connection.dbapi_connection
        return getattr(driver, "autocommit", False) is True and BEGINS not in connection.info

    def may_hide_rows(self, connection: Connection, tables: Iterable[Any]) -> bool:
        """Return whether a policy may hide rows of these tables, which then look deleted."""
        return False

    #: True of every row: from the statement that has it in its WHERE, the transaction waits for no
    #: lock longer than ten seconds. None: the database has a limit of its own.
    bounds_waits: ColumnElement[bool] | None = None

    def bound_locks(self, dialect: Dialect) -> ColumnElement[bool] | None:
        """Return such a condition for a query with locks that its program did not ask for.

        The server ends the transaction if its program pauses for longer than
        :data:`LONGEST_PAUSE`.
        """
        return None

    #: Whether the database has one lock for all rows.
    one_lock: bool = False

    def begin_writing(self, connection: Connection, table: Table) -> None:
        """Ensure that rows read next stay unchanged until the transaction ends.

        Raises:
            ConfigurationError: it does not, because nothing can lock a row here, or because every
                statement commits by itself.
        """
        require_locks(self, connection)

    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]:
        """``query`` with its rows locked, as weakly as the write that follows allows."""
        return query.with_for_update(of=table, key_share=not deleting)

    def lock_within(self, query: Select[Any], table: Table, wait: Wait) -> Select[Any]:
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

    def waiting(self, connection: Connection, wait: Wait) -> AbstractContextManager[None]:
        """For the length of a block, let statements wait for locks so long at most.

        Only where the statement itself does not say it.
        """
        return nullcontext()

    def share(self, query: Select[Any], table: Table, *, briefly: bool = False) -> Select[Any]:
        """``query`` with its rows locked against writers, and open to other readers.

        ``briefly``: without a wait, where no condition of the query limits it.
        """
        return query.with_for_update(of=table, read=True)

    #: Whether a plain read may find a row that a locking read does not find.
    hides_from_locks: bool = False

    def has_hint(self, table: Table) -> bool:
        """Return whether :meth:`lock` adds a hint by which rows of the table are found."""
        return False

    def refused_hint(self, table: Table, error: DBAPIError) -> bool:
        """Return whether a locking read was refused for its hint, which is then dropped."""
        return False

    def refuses_many(self, error: DBAPIError) -> bool:
        """Return whether the server refused a statement for several rows in a live transaction."""
        return False

    def lock_at_once(self, connection: Connection, query: Select[Any], table: Table) -> bool:
        """Lock the row of ``query`` without waiting; ``False`` if it is locked or missing.

        To be asked on a connection of its own, as the first thing of a transaction.
        """
        wait = Wait(skip=True)
        try:
            with self.waiting(connection, wait):
                self.begin_writing(connection, table)
                found = ask_with_hint(
                    self, table, lambda: connection.execute(self.lock_within(query, table, wait))
                )
                return found.first() is not None
        except DBAPIError as error:
            if self.one_lock and self.classify(error) is Cause.LOCK_TIMEOUT:
                return False  # there is no row to skip
            raise

    def update_at_once(
        self, connection: Connection, statement: Update, keys: KeyValues, params: Any
    ) -> CursorResult[Any] | None:
        """Send the UPDATE of one row, without waiting for its lock.

        To be asked on a connection of its own, on which each statement commits itself: one that is
        stopped in between has locked nothing.

        Args:
            keys: the columns of the row's key, and what they are equal to.

        Returns:
            The result, without a row where that is not there, or is passed over as locked; ``None``
            where the server has refused to wait.

        Raises:
            ConfigurationError: optilock does not know the SQL for this database.
        """
        try:
            with self.waiting(connection, Wait(skip=True)):
                sent = self.pass_over_lock(statement, keys)
                result: CursorResult[Any] = execute_unguarded(connection, sent, params)
                return result
        except DBAPIError as error:
            if self.classify(error) is Cause.LOCK_TIMEOUT:
                return None
            raise

    def pass_over_lock(self, statement: Update, keys: KeyValues) -> Update:
        """Return the UPDATE in a form that does not wait; or as it is, where a setting forbids it.

        Raises:
            ConfigurationError: optilock does not know the SQL for this database.
        """
        raise ConfigurationError(
            "A lease or a handle is renewed without waiting for locks, and optilock does not know"
            " the SQL for that on this database: renew it yourself. Nothing was sent."
        )


# -- how long a row lock is waited for -------------------------------------------------------------
#
# ``Wait()`` waits as long as the database is configured to, ``Wait(seconds=0)`` not at all.
# ``Wait(skip=True)`` does not wait either: rows that another transaction has locked are left out of
# the answer. :meth:`Database.lock_within` and :meth:`Database.waiting` send it to each database.


@dataclass(frozen=True)
class Wait:
    """How long, in seconds; ``None``: as the database is set up."""

    seconds: float | None = None
    skip: bool = False

    @property
    def usual(self) -> bool:
        return self.seconds is None and not self.skip

    @property
    def milliseconds(self) -> int | None:
        """The longest wait; 0 with ``skip``, too; ``None``: as the database is configured."""
        if self.skip:
            return 0
        return None if self.seconds is None else round(self.seconds * 1000)
