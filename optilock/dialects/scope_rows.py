"""The rows of scopes: moved, checked, locked and read (:mod:`optilock._watched.scopes`).

Each statement takes keys in Python's order, in which the column of the keys sorts on every server,
and locks their rows in this order. A row that is not there stands for the version 0. Nothing can be
locked in it, so it is inserted before it is checked.

A move returns the new versions. One statement moves and checks: the version that was seen is the
new one less 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from optilock.dialects.causes import Cause
from optilock.dialects.one_row import OneRow
from optilock.dialects.rows import Locks, execute_unguarded
from optilock.dialects.values import quoted_name
from optilock.errors import ConfigurationError
from optilock.tables.names import scopes

#: The most keys that go with COMMIT.
_WITH_COMMIT = 20
#: Key -> version.
Versions = dict[str, int]

_READ = sa.select(scopes.c.scope, scopes.c.version).where(
    scopes.c.scope.in_(sa.bindparam("keys", expanding=True))
)
IN_ORDER = _READ.order_by(scopes.c.scope)


class _Asked(Locks, Protocol):
    """The methods of a database's class that the statements need."""

    @property
    def one_row(self) -> OneRow: ...
    def classify(self, error: DBAPIError) -> Cause: ...


class ScopeRows:
    """The statements of one database, made once; a file of its folder overrides what differs."""

    def __init__(self, database: _Asked) -> None:
        self.database = database

    # -- asked by sessions -------------------------------------------------------------------------

    def read(self, connection: sa.Connection, keys: Collection[str]) -> Versions:
        """Return the stored versions, without a lock; keys without a row are missing."""
        return self._send(connection, _READ, keys)

    def move(self, connection: sa.Connection, keys: Sequence[str]) -> Versions:
        """Move the versions of sorted keys by 1, and return the new ones."""
        found: Versions = {}
        for some in self._in_parts(keys):
            rows = [{"scope": key, "version": 1} for key in some]
            found.update(self._moved(connection, rows if len(rows) > 1 else rows[0], some))
        return found

    def check(
        self, connection: sa.Connection, keys: Sequence[str], absent: Collection[str]
    ) -> Versions:
        """Return the versions of sorted keys, which stay until the transaction ends.

        ``absent``: those of them that may have no row yet.
        """
        self._make(connection, keys, absent)
        return self._send(connection, self._sharing, keys)

    def lock(self, connection: sa.Connection, keys: Sequence[str]) -> Versions:
        """Lock sorted keys against other transactions that move or check them."""
        return self._locked(connection, self._locking, keys)

    def lock_one(self, connection: sa.Connection, key: str, any_key: str) -> Versions:
        """Lock the first key as :meth:`lock` does, and the second one against movers only."""
        found: Versions = {}
        for one in sorted((key, any_key)):
            query = self._locking if one == key else self._sharing
            found.update(self._locked(connection, query, [one]))
        return found

    def _locked(
        self, connection: sa.Connection, query: sa.Select[Any], keys: Sequence[str]
    ) -> Versions:
        found = self._send(connection, query, keys)
        if len(found) < len(keys):
            self._make(connection, keys, keys)
            found = self._send(connection, query, keys)
        return found

    def move_with_commit(self, connection: sa.Connection, keys: Sequence[str]) -> bool:
        """Let the versions of sorted keys move in the trip of COMMIT, which comes next.

        ``False``: this database or driver cannot, and nothing has changed. An error is one of
        COMMIT, so the table must have been used over this pool before.
        """
        options = connection.get_execution_options()
        if len(keys) > _WITH_COMMIT or "schema_translate_map" in options:
            return False
        table = quoted_name(connection.dialect, scopes)
        return self._goes_with_commit(connection, table, keys)

    # -- what differs ------------------------------------------------------------------------------

    def _goes_with_commit(self, connection: sa.Connection, table: str, keys: Sequence[str]) -> bool:
        return False

    def _moved(self, connection: sa.Connection, given: Any, keys: Sequence[str]) -> Versions:
        return dict(map(tuple, self._ask(connection, self._upsert, given)))

    def _make(
        self, connection: sa.Connection, keys: Sequence[str], absent: Collection[str]
    ) -> None:
        """Insert the rows that are not there; where one lock is for all rows, take it."""
        missing = [{"scope": key, "version": 0} for key in keys if key in absent]
        if missing:
            self._ask(connection, self._insert, missing).close()
        else:
            self.database.locks.begin_writing(connection, scopes)

    @cached_property
    def _upsert(self) -> Any:
        made = self.database.one_row.upsert(scopes, lambda new: {"version": scopes.c.version + 1})
        return made.returning(scopes.c.scope, scopes.c.version)

    @cached_property
    def _insert(self) -> Any:
        made = self.database.one_row.insert_unless(scopes)
        if made is None:
            raise ConfigurationError(_NO_DATABASE)
        return made

    @cached_property
    def _sharing(self) -> sa.Select[Any]:
        return self.database.locks.share(IN_ORDER, scopes)

    @cached_property
    def _locking(self) -> sa.Select[Any]:
        return self.database.locks.lock(IN_ORDER, scopes, deleting=True)

    # -- how they are sent -------------------------------------------------------------------------

    def _send(
        self, connection: sa.Connection, query: sa.Select[Any], keys: Collection[str]
    ) -> Versions:
        found: Versions = {}
        for some in self._in_parts(list(keys)):
            found.update(map(tuple, self._ask(connection, query, {"keys": some})))
        return found

    def _in_parts(self, keys: Sequence[str]) -> Iterator[Sequence[str]]:
        step = self.database.keys.keys_at_once(2)
        return (keys[start : start + step] for start in range(0, len(keys), step))

    def _ask(self, connection: sa.Connection, statement: Any, given: Any) -> Any:
        try:
            return execute_unguarded(connection, statement, given)
        except DBAPIError as error:
            if self.database.classify(error) is not Cause.OTHER:
                raise
            raise ConfigurationError(_NO_TABLE) from error


def versions_of(found: Mapping[str, int], keys: Collection[str]) -> Versions:
    """Return the version of each key: 0 where there is no row."""
    return {key: found.get(key, 0) for key in keys}


_NO_TABLE = (
    "__version_scopes__ needs the table optilock_scopes, and this connection cannot use it: run"
    ' optilock\'s migrations up to 0007, or op.create_optilock_tables("scopes") in one of your own.'
    " The user needs SELECT, INSERT and UPDATE. The transaction cannot be committed."
)
_NO_DATABASE = (
    "__version_scopes__ works on PostgreSQL, MariaDB and SQLite: optilock knows of no statement for"
    " this database that inserts a row unless it is there. Nothing was committed."
)
