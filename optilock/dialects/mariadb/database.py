"""MariaDB."""

from __future__ import annotations

from functools import cached_property

from optilock.dialects.base import Database
from optilock.dialects.mariadb.causes import MariaDBCodes
from optilock.dialects.mariadb.commit_tokens import MariaDBTokens
from optilock.dialects.mariadb.ends import MariaDBEnds
from optilock.dialects.mariadb.forms import MariaDBForms
from optilock.dialects.mariadb.isolation import MariaDBIsolationLevels
from optilock.dialects.mariadb.keys import MariaDBRowKeys
from optilock.dialects.mariadb.locks import MariaDBRowLocks
from optilock.dialects.mariadb.migrations import (
    MariaDBCatalogue,
    MariaDBGuard,
    MariaDBWays,
)
from optilock.dialects.mariadb.one_row import MariaDBOneRow
from optilock.dialects.mariadb.queue_sql import MariaDBMessages
from optilock.dialects.mariadb.scope_rows import MariaDBScopeRows
from optilock.dialects.mariadb.scope_triggers import MariaDBScopeTriggers
from optilock.dialects.mariadb.servers import MariaDBServers
from optilock.dialects.mariadb.tables import MariaDBTables
from optilock.dialects.mariadb.values import MariaDBValues
from optilock.dialects.mariadb.waits import MariaDBWaits
from optilock.dialects.mariadb.watching import MariaDBWatching
from optilock.dialects.registry import register


@register
class MariaDB(MariaDBCodes, Database):
    names = ("mysql", "mariadb")

    locks = cached_property(MariaDBRowLocks)
    waits = cached_property(MariaDBWaits)
    keys = cached_property(MariaDBRowKeys)
    forms = cached_property(MariaDBForms)
    one_row = cached_property(MariaDBOneRow)
    values = cached_property(MariaDBValues)

    isolation = cached_property(MariaDBIsolationLevels)
    ends = cached_property(MariaDBEnds)
    servers = cached_property(MariaDBServers)
    watching = cached_property(MariaDBWatching)

    commit_tokens = cached_property(MariaDBTokens)
    scope_rows = cached_property(MariaDBScopeRows)
    messages = MariaDBMessages

    tables = cached_property(MariaDBTables)
    catalogue = MariaDBCatalogue
    guard_triggers = MariaDBGuard
    scope_triggers = MariaDBScopeTriggers
    rollout = MariaDBWays
