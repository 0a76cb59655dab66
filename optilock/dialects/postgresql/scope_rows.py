"""The rows of scopes on PostgreSQL: psycopg moves them in the trip of COMMIT."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from optilock.dialects.postgresql.commit_tokens import goes_with_commit, literal
from optilock.dialects.scope_rows import ScopeRows


class PostgreSQLScopeRows(ScopeRows):
    def _goes_with_commit(self, connection: sa.Connection, table: str, keys: Sequence[str]) -> bool:
        rows = ", ".join(f"({literal(key)}, 1)" for key in keys)
        sql = f"INSERT INTO {table} AS known (scope, version) VALUES {rows}"
        return goes_with_commit(
            connection,
            f"{sql} ON CONFLICT (scope) DO UPDATE SET version = known.version + 1",
            in_pipelines=False,
        )
