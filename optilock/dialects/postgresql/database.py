"""PostgreSQL."""

from __future__ import annotations

from functools import cached_property

from optilock.dialects.base import (
    Database,
)
from optilock.dialects.postgresql.causes import PostgreSQLCodes
from optilock.dialects.postgresql.change_notices import PostgreSQLChangeNotices
from optilock.dialects.postgresql.commit_tokens import PostgreSQLTokens
from optilock.dialects.postgresql.ends import PostgreSQLEnds
from optilock.dialects.postgresql.forms import PostgreSQLForms
from optilock.dialects.postgresql.isolation import PostgreSQLIsolationLevels
from optilock.dialects.postgresql.locks import PostgreSQLRowLocks
from optilock.dialects.postgresql.migrations import (
    PostgreSQLCatalogue,
    PostgreSQLGuard,
    PostgreSQLWays,
)
from optilock.dialects.postgresql.one_row import PostgreSQLOneRow
from optilock.dialects.postgresql.queue_sql import PostgreSQLMessages
from optilock.dialects.postgresql.scope_rows import PostgreSQLScopeRows
from optilock.dialects.postgresql.scope_triggers import PostgreSQLScopeTriggers
from optilock.dialects.postgresql.servers import PostgreSQLServers
from optilock.dialects.postgresql.trips import PostgreSQLTrips
from optilock.dialects.postgresql.values import PostgreSQLValues
from optilock.dialects.postgresql.waits import PostgreSQLWaits
from optilock.dialects.postgresql.watching import PostgreSQLWatching
from optilock.dialects.registry import register


@register
class PostgreSQL(PostgreSQLCodes, Database):
    names = ("postgresql",)

    locks = cached_property(PostgreSQLRowLocks)
    waits = cached_property(PostgreSQLWaits)
    forms = cached_property(PostgreSQLForms)
    one_row = cached_property(PostgreSQLOneRow)
    values = cached_property(PostgreSQLValues)

    isolation = cached_property(PostgreSQLIsolationLevels)
    ends = cached_property(PostgreSQLEnds)
    trips = cached_property(PostgreSQLTrips)
    servers = cached_property(PostgreSQLServers)
    watching = cached_property(PostgreSQLWatching)

    commit_tokens = cached_property(PostgreSQLTokens)
    scope_rows = cached_property(PostgreSQLScopeRows)
    messages = PostgreSQLMessages

    catalogue = PostgreSQLCatalogue
    guard_triggers = PostgreSQLGuard
    scope_triggers = PostgreSQLScopeTriggers
    change_notices = PostgreSQLChangeNotices
    rollout = PostgreSQLWays
