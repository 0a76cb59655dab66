"""SQLite."""

from __future__ import annotations

from functools import cached_property

from optilock.dialects.base import Database
from optilock.dialects.registry import register
from optilock.dialects.sqlite.causes import SQLiteCodes
from optilock.dialects.sqlite.ends import SQLiteEnds
from optilock.dialects.sqlite.forms import SQLiteForms
from optilock.dialects.sqlite.isolation import SQLiteIsolationLevels
from optilock.dialects.sqlite.keys import SQLiteRowKeys
from optilock.dialects.sqlite.locks import SQLiteRowLocks
from optilock.dialects.sqlite.migrations import (
    SQLiteCatalogue,
    SQLiteGuard,
    SQLiteWays,
)
from optilock.dialects.sqlite.one_row import SQLiteOneRow
from optilock.dialects.sqlite.queue_sql import SQLiteMessages
from optilock.dialects.sqlite.scope_triggers import SQLiteScopeTriggers
from optilock.dialects.sqlite.tables import SQLiteTables
from optilock.dialects.sqlite.values import SQLiteValues
from optilock.dialects.sqlite.waits import SQLiteWaits
from optilock.dialects.sqlite.watching import SQLiteWatching


@register
class SQLite(SQLiteCodes, Database):
    names = ("sqlite",)

    locks = cached_property(SQLiteRowLocks)
    waits = cached_property(SQLiteWaits)
    keys = cached_property(SQLiteRowKeys)
    forms = cached_property(SQLiteForms)
    one_row = cached_property(SQLiteOneRow)
    values = cached_property(SQLiteValues)

    isolation = cached_property(SQLiteIsolationLevels)
    ends = cached_property(SQLiteEnds)
    watching = cached_property(SQLiteWatching)

    messages = SQLiteMessages

    tables = cached_property(SQLiteTables)
    catalogue = SQLiteCatalogue
    guard_triggers = SQLiteGuard
    scope_triggers = SQLiteScopeTriggers
    rollout = SQLiteWays
