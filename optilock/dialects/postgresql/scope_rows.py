"""The rows of scopes on PostgreSQL, locked in one statement; psycopg moves them with COMMIT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from optilock.dialects.postgresql.commit_tokens import goes_with_commit, literal
from optilock.dialects.scope_rows import ScopeRows, Versions
from optilock.tables.names import scopes


def _together(*, shares_first: bool) -> sa.CompoundSelect[Any]:
    """Return the query that locks two rows in this order, each in its own way."""
    one = sa.select(scopes.c.scope, scopes.c.version)
    locked = one.where(scopes.c.scope == sa.bindparam("locked")).with_for_update()
    shared = one.where(scopes.c.scope == sa.bindparam("shared")).with_for_update(read=True)
    order = (shared, locked) if shares_first else (locked, shared)
    return sa.union_all(*(sa.select(query.cte()) for query in order))


#: By the row that is locked first.
_TOGETHER = {"locked": _together(shares_first=False), "shared": _together(shares_first=True)}


class PostgreSQLScopeRows(ScopeRows):
    def lock_one(self, connection: sa.Connection, key: str, any_key: str) -> Versions:
        keys = {"locked": key, "shared": any_key}
        found: Versions = dict(
            map(
                tuple,
                self._ask(connection, _TOGETHER["locked" if key < any_key else "shared"], keys),
            )
        )
        return found if len(found) == len(keys) else super().lock_one(connection, key, any_key)

    def _goes_with_commit(self, connection: sa.Connection, table: str, keys: Sequence[str]) -> bool:
        rows = ", ".join(f"({literal(key)}, 1)" for key in keys)
        sql = f"INSERT INTO {table} AS known (scope, version) VALUES {rows}"
        return goes_with_commit(
            connection,
            f"{sql} ON CONFLICT (scope) DO UPDATE SET version = known.version + 1",
            in_pipelines=False,
        )
