"""The rows of scopes on MariaDB: ON DUPLICATE KEY UPDATE, and INSERT IGNORE of absent rows.

MySQL has no RETURNING: there a second statement reads the rows that the first one has locked. On a
node of a Galera cluster a lock does not reach the other nodes, which compare what transactions have
*written*. So versions that are checked are moved there, and moved back: a transaction of another
node that moves or checks the scope then conflicts with ours, and the stored version, and with it
the ETag, is the one from before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert

from optilock.dialects.mariadb import galera
from optilock.dialects.mariadb.commit_tokens import goes_with_commit, literal
from optilock.dialects.scope_rows import ScopeRows, Versions
from optilock.tables.names import scopes

_UPSERT = insert(scopes).on_duplicate_key_update(version=scopes.c.version + 1)
_MOVE = _UPSERT.returning(scopes.c.scope, scopes.c.version)
_MAKE = insert(scopes).prefix_with("IGNORE")
_OF_KEYS = scopes.c.scope.in_(sa.bindparam("keys", expanding=True))
_AWAY = scopes.update().where(_OF_KEYS).values(version=scopes.c.version + 1)
_BACK = scopes.update().where(_OF_KEYS).values(version=scopes.c.version - 1)


class MariaDBScopeRows(ScopeRows):
    def check(
        self, connection: sa.Connection, keys: Sequence[str], absent: Collection[str]
    ) -> Versions:
        if not galera.is_node(connection):
            return super().check(connection, keys, absent)
        self._make(connection, keys, absent)
        found = self._send(connection, self._locking, keys)
        for some in self._in_parts(keys):
            for statement in (_AWAY, _BACK):
                self._ask(connection, statement, {"keys": some}).close()
        return found

    def _moved(self, connection: sa.Connection, given: Any, keys: Sequence[str]) -> Versions:
        if getattr(connection.dialect, "is_mariadb", False):
            return super()._moved(connection, given, keys)
        self._ask(connection, _UPSERT, given).close()
        return self._send(connection, self._locking, keys)

    def _goes_with_commit(self, connection: sa.Connection, table: str, keys: Sequence[str]) -> bool:
        rows = ", ".join(f"({literal(key)}, 1)" for key in keys)
        sql = f"INSERT INTO {table} (scope, version) VALUES {rows}"
        return goes_with_commit(connection, f"{sql} ON DUPLICATE KEY UPDATE version = version + 1")

    @cached_property
    def _upsert(self) -> Any:
        return _MOVE

    @cached_property
    def _insert(self) -> Any:
        return _MAKE
