"""SQLite."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from optilock.conditions.write import Write
from optilock.dialects.base import Changes, Database, Form
from optilock.dialects.catalogue import Catalogue
from optilock.dialects.causes import Cause
from optilock.dialects.connections import send_afterwards
from optilock.dialects.locks import KeyValues, Wait
from optilock.dialects.migrations import Names, TriggerDDL
from optilock.dialects.queue_sql import Messages, Place
from optilock.dialects.registry import register
from optilock.dialects.rows import require_locks
from optilock.dialects.sqlite.ends import SQLiteEnds
from optilock.dialects.sqlite.isolation import SQLiteIsolationLevels, in_transaction
from optilock.dialects.sqlite.migrations import (
    SQLiteCatalogue,
    SQLiteGuard,
    SQLiteWays,
    version_trigger,
)
from optilock.dialects.sqlite.queue_sql import SQLiteMessages
from optilock.dialects.sqlite.rows import RowByRow
from optilock.dialects.sqlite.scope_triggers import SQLiteScopeTriggers
from optilock.dialects.sqlite.values import SQLiteValues
from optilock.dialects.sqlite.watching import SQLiteWatching
from optilock.dialects.values import quote_name

#: An option of the table, behind its columns.
_WITHOUT_ROWID = re.compile(r"\)[^)]*\bWITHOUT\s+ROWID\b[^)]*$", re.IGNORECASE)


@register
class SQLite(Database):
    names = ("sqlite",)

    isolation = cached_property(SQLiteIsolationLevels)
    ends = cached_property(SQLiteEnds)
    watching = cached_property(SQLiteWatching)
    values = cached_property(SQLiteValues)
    cased_columns = False
    keeps_types = False  # any value in any column (https://sqlite.org/flextypegood.html)

    # -- versions that the database makes --------------------------------------------------------

    returns_before_triggers = True

    def version_trigger(self, names: Names) -> TriggerDDL:
        return version_trigger(names)

    # -- how rows are written --------------------------------------------------------------------

    #: SQLITE_MAX_VARIABLE_NUMBER is 999 in old builds (https://sqlite.org/limits.html).
    max_parameters = 900

    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        """Behind a thread (aiosqlite) each row would be a hop: there lock and look is cheaper."""
        return super().form(writes, dialect, locked=locked) if dialect.is_async else RowByRow()

    one_lock = True
    stores_before_rows_are_read = False

    def locks_rows(self, dialect: sa.Dialect) -> bool:
        """All of them: see :meth:`begin_writing`."""
        return True

    def begin_writing(self, connection: sa.Connection, table: sa.Table) -> None:
        """Take the write lock with a DELETE that matches nothing: no other writer from here on.

        The sqlite3 module begins a transaction only with the first write; a SELECT before it
        would hold nothing.
        """
        require_locks(self, connection)
        statement = table.delete().where(sa.false())
        type(connection).execute(connection, statement)

    def lock(self, query: sa.Select[Any], table: sa.Table, *, deleting: bool) -> sa.Select[Any]:
        return query

    def lock_within(self, query: sa.Select[Any], table: sa.Table, wait: Wait) -> sa.Select[Any]:
        return query  # the one lock is taken before: see begin_writing

    def pass_over_lock(self, statement: sa.Update, keys: KeyValues) -> sa.Update:
        return statement  # one lock for all: see waiting

    @contextmanager
    def waiting(self, connection: sa.Connection, wait: Wait) -> Iterator[None]:
        """``busy_timeout``, which belongs to the connection (https://sqlite.org/pragma.html)."""
        if wait.milliseconds is None:
            yield
            return
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait.milliseconds}")
        with send_afterwards(connection.exec_driver_sql, f"PRAGMA busy_timeout = {before}"):
            yield

    def share(
        self, query: sa.Select[Any], table: sa.Table, *, briefly: bool = False
    ) -> sa.Select[Any]:
        return query

    # -- one row by its key ----------------------------------------------------------------------

    def insert_unless(self, table: sa.Table) -> sa.Insert:
        return insert(table).on_conflict_do_nothing(index_elements=[*table.primary_key])

    def upsert(self, table: sa.Table, changes: Changes) -> sa.Insert:
        made = insert(table)
        return made.on_conflict_do_update(
            index_elements=[*table.primary_key], set_=changes(made.excluded)
        )

    # -- what an error means (https://sqlite.org/rescode.html) -----------------------------------

    drivers = ("sqlite3", "aiosqlite", "pysqlcipher3", "sqlcipher3")
    #: READONLY and AUTH.
    forbidden = frozenset({8, 23})
    #: READONLY, INTERRUPT, IOERR, FULL and CANTOPEN.
    hindrances = frozenset({8, 9, 10, 13, 14})
    #: CONSTRAINT_CHECK, CONSTRAINT_TRIGGER.
    unstorable = frozenset({275, 1811})
    causes = MappingProxyType(
        {
            # BUSY_SNAPSHOT: what was read is no longer the newest; no waiting helps
            517: Cause.CONFLICT,
            # BUSY and its extended forms; LOCKED_SHAREDCACHE (plain LOCKED is one's own doing)
            5: Cause.LOCK_TIMEOUT,
            262: Cause.LOCK_TIMEOUT,
        }
    )
    #: IOERR: the journal may or may not have reached the disk.
    causes_at_commit = MappingProxyType({10: Cause.UNKNOWN_OUTCOME})

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The extended result code, and the primary one in its lowest byte."""
        code = getattr(error, "sqlite_errorcode", None)
        if isinstance(code, int):
            yield from (code, code & 0xFF)

    # -- how a table is changed while it is written ----------------------------------------------

    def complete(self, connection: sa.Connection, table: sa.Table) -> None:
        """``WITHOUT ROWID``, which SQLAlchemy reflects from 2.0.53 on."""
        master = f"{quote_name(connection.dialect, table.schema or 'main')}.sqlite_master"
        sql = connection.exec_driver_sql(
            f"SELECT sql FROM {master} WHERE type = 'table' AND lower(name) = lower(?)",
            (table.name,),
        ).scalar()
        if sql and _WITHOUT_ROWID.search(sql):
            table.dialect_options["sqlite"]["with_rowid"] = False

    guard_triggers = SQLiteGuard
    scope_triggers = SQLiteScopeTriggers
    rollout = SQLiteWays
    batch_makes_anew = True

    def missing_file(self, url: sa.URL) -> str | None:
        path = url.database
        if not path or path.startswith((":memory:", "file:")) or os.path.isfile(path):
            return None
        return path

    # -- what makes it weaker than it looks -------------------------------------------------------

    def catalogue(self, connection: sa.Connection, schema: str | None) -> Catalogue:
        return SQLiteCatalogue(connection, schema, self.cased_columns)

    # -- queues ----------------------------------------------------------------------------------

    def messages(self, place: Place) -> Messages:
        return SQLiteMessages(place)

    # -- isolation -------------------------------------------------------------------------------

    def autocommits(self, connection: sa.Connection) -> bool:
        """Return whether the connection is in autocommit mode without a BEGIN."""
        driver = connection.connection.dbapi_connection
        off = getattr(driver, "isolation_level", "") is None
        off = off or getattr(driver, "autocommit", None) is True
        return off and not in_transaction(connection)
