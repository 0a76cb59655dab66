"""SQLite."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from optilock.conditions.write import Write
from optilock.dialects.base import Changes, Database, Form
from optilock.dialects.catalogue import Catalogue
from optilock.dialects.causes import Cause
from optilock.dialects.migrations import Names, TriggerDDL
from optilock.dialects.queue_sql import Messages, Place
from optilock.dialects.registry import register
from optilock.dialects.sqlite.ends import SQLiteEnds
from optilock.dialects.sqlite.isolation import SQLiteIsolationLevels
from optilock.dialects.sqlite.keys import SQLiteRowKeys
from optilock.dialects.sqlite.locks import SQLiteRowLocks
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
from optilock.dialects.sqlite.waits import SQLiteWaits
from optilock.dialects.sqlite.watching import SQLiteWatching
from optilock.dialects.values import quote_name

#: An option of the table, behind its columns.
_WITHOUT_ROWID = re.compile(r"\)[^)]*\bWITHOUT\s+ROWID\b[^)]*$", re.IGNORECASE)


@register
class SQLite(Database):
    names = ("sqlite",)

    locks = cached_property(SQLiteRowLocks)
    waits = cached_property(SQLiteWaits)
    keys = cached_property(SQLiteRowKeys)
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

    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        """Behind a thread (aiosqlite) each row would be a hop: there lock and look is cheaper."""
        return super().form(writes, dialect, locked=locked) if dialect.is_async else RowByRow()

    stores_before_rows_are_read = False

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
