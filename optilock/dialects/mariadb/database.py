"""MariaDB."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError

from optilock.conditions.write import Write
from optilock.dialects.base import Cascade, Changes, Database, Form
from optilock.dialects.catalogue import Catalogue, Weakness
from optilock.dialects.commit_tokens import CommitTokens
from optilock.dialects.locks import KeyValues, Wait
from optilock.dialects.mariadb import galera
from optilock.dialects.mariadb.causes import MariaDBCodes, number_of
from optilock.dialects.mariadb.commit_tokens import MariaDBTokens
from optilock.dialects.mariadb.ends import MariaDBEnds
from optilock.dialects.mariadb.isolation import MariaDBIsolationLevels
from optilock.dialects.mariadb.migrations import (
    MariaDBCatalogue,
    MariaDBGuard,
    MariaDBWays,
    note_what_moves,
    version_trigger,
)
from optilock.dialects.mariadb.pauses import BOUNDED_LOCKS, watch_marks
from optilock.dialects.mariadb.queue_sql import MariaDBMessages
from optilock.dialects.mariadb.rows import (
    BY_PRIMARY,
    at_keys,
    forget_primary,
    has_primary,
    is_refused,
    joined_rows,
)
from optilock.dialects.mariadb.scope_rows import MariaDBScopeRows
from optilock.dialects.mariadb.scope_triggers import MariaDBScopeTriggers
from optilock.dialects.mariadb.values import MariaDBValues
from optilock.dialects.mariadb.watching import MariaDBWatching
from optilock.dialects.mariadb.weak_settings import weak_settings
from optilock.dialects.migrations import Names, TriggerDDL
from optilock.dialects.queue_sql import Messages, Place
from optilock.dialects.registry import register
from optilock.dialects.scope_rows import ScopeRows
from optilock.errors import ConfigurationError
from optilock.mapped import Identity

_CASCADES = sa.text(
    "SELECT k.table_name, k.column_name, r.referenced_table_name, r.update_rule, r.delete_rule"
    " FROM information_schema.referential_constraints r"
    " JOIN information_schema.key_column_usage k ON k.constraint_schema = r.constraint_schema"
    " AND k.constraint_name = r.constraint_name AND k.table_name = r.table_name"
    " WHERE r.constraint_schema = COALESCE(:schema, DATABASE())"
    " ORDER BY k.table_name, k.ordinal_position"
)


@register
class MariaDB(MariaDBCodes, Database):
    names = ("mysql", "mariadb")

    isolation = cached_property(MariaDBIsolationLevels)
    ends = cached_property(MariaDBEnds)
    watching = cached_property(MariaDBWatching)
    values = cached_property(MariaDBValues)

    # -- versions that the database makes --------------------------------------------------------

    def version_trigger(self, names: Names) -> TriggerDDL:
        return version_trigger(names)

    # -- how rows are written --------------------------------------------------------------------

    def name_reflected(self, found: str) -> str:
        """SQLAlchemy leaves a backtick doubled, as ``SHOW CREATE TABLE`` writes it."""
        return found.replace("``", "`")

    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        return joined_rows(self, writes, dialect) or super().form(writes, dialect, locked=locked)

    def at_keys(
        self, columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Identity]
    ) -> sa.ColumnElement[bool]:
        return at_keys(columns, keys)

    def lock(self, query: sa.Select[Any], table: sa.Table, *, deleting: bool) -> sa.Select[Any]:
        """FOR UPDATE through the primary key: a scan of the table would lock every row."""
        return _through_key(query, table).with_for_update()

    def lock_within(self, query: sa.Select[Any], table: sa.Table, wait: Wait) -> sa.Select[Any]:
        """NOWAIT, SKIP LOCKED, or ``WAIT n``: MariaDB counts whole seconds.

        (https://mariadb.com/kb/en/wait-and-nowait/; SKIP LOCKED since 10.6)
        """
        locked = self.lock(query, table, deleting=False)
        if wait.usual:
            return locked
        if wait.skip or not wait.seconds:
            return locked.with_for_update(nowait=not wait.skip, skip_locked=wait.skip)
        return locked.suffix_with(f"WAIT {math.ceil(wait.seconds)}")

    def waiting(self, connection: sa.Connection, wait: Wait) -> AbstractContextManager[None]:
        if wait.milliseconds and not getattr(connection.dialect, "is_mariadb", False):
            raise ConfigurationError(
                "lock(timeout=...) needs FOR UPDATE WAIT n, which MySQL has not (MariaDB has):"
                " use nowait=True or skip_locked=True, or set innodb_lock_wait_timeout of the"
                " session. Nothing was sent."
            )
        return super().waiting(connection, wait)

    def update_at_once(
        self, connection: sa.Connection, statement: sa.Update, keys: KeyValues, params: Any
    ) -> sa.CursorResult[Any] | None:
        """``innodb_lock_wait_timeout`` of the connection, which is closed afterwards.

        (https://mariadb.com/kb/en/innodb-system-variables/#innodb_lock_wait_timeout; MySQL waits
        for one second, its least)
        """
        connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
        return super().update_at_once(connection, statement, keys, params)

    def pass_over_lock(self, statement: sa.Update, keys: KeyValues) -> sa.Update:
        return statement

    def share(
        self, query: sa.Select[Any], table: sa.Table, *, briefly: bool = False
    ) -> sa.Select[Any]:
        """LOCK IN SHARE MODE, through the primary key as well; ``briefly`` with NOWAIT.

        (https://mariadb.com/kb/en/wait-and-nowait/: seconds are the shortest wait)
        """
        return _through_key(query, table).with_for_update(read=True, nowait=briefly)

    def has_brief_reads(self, dialect: sa.Dialect) -> bool:
        """MariaDB has NOWAIT for shared locks in this form, and MySQL in another one."""
        return getattr(dialect, "is_mariadb", False)

    def bound_locks(self, dialect: sa.Dialect) -> sa.ColumnElement[bool] | None:
        return BOUNDED_LOCKS if watch_marks(dialect) else None

    def refuses_many(self, error: DBAPIError) -> bool:
        return is_refused(error)

    def has_hint(self, table: sa.Table) -> bool:
        return has_primary(table)

    def refused_hint(self, table: sa.Table, error: DBAPIError) -> bool:
        return forget_primary(table, error)

    def insert_if_absent(self, table: sa.Table) -> sa.Insert | None:
        """INSERT IGNORE would pass over any other rule of a table as well."""
        return table.insert().prefix_with("IGNORE")

    # -- one row by its key ----------------------------------------------------------------------

    def telling(self, value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """The server's answer has what LAST_INSERT_ID() was given, of an UPDATE as well."""
        return sa.func.last_insert_id(value, type_=value.type)

    def upsert(self, table: sa.Table, changes: Changes) -> sa.Insert:
        """ON DUPLICATE KEY UPDATE, which a row of another key is met by as well: it stays as it is.

        (https://mariadb.com/kb/en/insert-on-duplicate-key-update/)
        """
        made = insert(table)
        ours = sa.and_(*(column == made.inserted[column.key] for column in table.primary_key))
        return made.on_duplicate_key_update(
            {
                name: sa.func.if_(ours, value, table.columns[name])
                for name, value in changes(made.inserted).items()
            }
        )

    upserts_by_any_key = True

    # -- how a table is changed while it is written ----------------------------------------------

    def complete(self, connection: sa.Connection, table: sa.Table) -> None:
        note_what_moves(connection, table)

    guard_triggers = MariaDBGuard
    scope_triggers = MariaDBScopeTriggers
    cascades_fire_triggers = False
    rollout = MariaDBWays

    def as_script(self, statement: str) -> str | None:
        return f"DELIMITER //\n{statement}//\nDELIMITER ;\n" if ";" in statement else None

    # -- what makes it weaker than it looks -------------------------------------------------------

    def weak_settings(self, connection: sa.Connection) -> Iterator[Weakness]:
        return weak_settings(connection)

    def silent_cascades(self, connection: sa.Connection, schema: str | None) -> list[Cascade]:
        """InnoDB does them itself (https://mariadb.com/kb/en/trigger-limitations/)."""
        found = connection.execute(_CASCADES, {"schema": schema})
        return [
            Cascade(table, column, parent, f"ON {event} {rule}")
            for table, column, parent, *rules in found
            for event, rule in zip(("UPDATE", "DELETE"), rules, strict=True)
            if rule == "SET NULL" or (event, rule) == ("UPDATE", "CASCADE")
        ]

    cased_columns = False

    def catalogue(self, connection: sa.Connection, schema: str | None) -> Catalogue:
        return MariaDBCatalogue(connection, schema, self.cased_columns)

    # -- queues ----------------------------------------------------------------------------------

    def messages(self, place: Place) -> Messages:
        return MariaDBMessages(place)

    def commit_tokens(self) -> CommitTokens:
        return MariaDBTokens(self)

    @cached_property
    def scope_rows(self) -> ScopeRows:
        return MariaDBScopeRows(self)

    # -- isolation -------------------------------------------------------------------------------

    def autocommits(self, connection: sa.Connection) -> bool:
        """PyMySQL, mysqlclient and asyncmy know it from the server's last answer."""
        ask = getattr(connection.connection.dbapi_connection, "get_autocommit", None)
        if ask is None:
            return super().autocommits(connection)
        return bool(ask())

    # -- a cluster -------------------------------------------------------------------------------

    def locks_are_local(self, connection: sa.Connection) -> bool:
        return galera.is_node(connection)

    def is_out(self, connection: sa.Connection, error: BaseException) -> bool:
        return number_of(error) == galera.NOT_PREPARED

    def see_all(self, connection: sa.Connection) -> None:
        if galera.is_node(connection):
            galera.see_what_others_have_committed(connection)


def _through_key(query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
    return query.with_hint(table, BY_PRIMARY) if has_primary(table) else query
