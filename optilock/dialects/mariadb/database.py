"""MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert

from optilock.conditions.write import Write
from optilock.dialects.base import Cascade, Changes, Database, Form
from optilock.dialects.catalogue import Catalogue, Weakness
from optilock.dialects.commit_tokens import CommitTokens
from optilock.dialects.mariadb import galera
from optilock.dialects.mariadb.causes import MariaDBCodes, number_of
from optilock.dialects.mariadb.commit_tokens import MariaDBTokens
from optilock.dialects.mariadb.ends import MariaDBEnds
from optilock.dialects.mariadb.isolation import MariaDBIsolationLevels
from optilock.dialects.mariadb.keys import MariaDBRowKeys
from optilock.dialects.mariadb.locks import MariaDBRowLocks
from optilock.dialects.mariadb.migrations import (
    MariaDBCatalogue,
    MariaDBGuard,
    MariaDBWays,
    note_what_moves,
    version_trigger,
)
from optilock.dialects.mariadb.queue_sql import MariaDBMessages
from optilock.dialects.mariadb.rows import (
    joined_rows,
)
from optilock.dialects.mariadb.scope_rows import MariaDBScopeRows
from optilock.dialects.mariadb.scope_triggers import MariaDBScopeTriggers
from optilock.dialects.mariadb.values import MariaDBValues
from optilock.dialects.mariadb.waits import MariaDBWaits
from optilock.dialects.mariadb.watching import MariaDBWatching
from optilock.dialects.mariadb.weak_settings import weak_settings
from optilock.dialects.migrations import Names, TriggerDDL
from optilock.dialects.queue_sql import Messages, Place
from optilock.dialects.registry import register
from optilock.dialects.scope_rows import ScopeRows

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

    locks = cached_property(MariaDBRowLocks)
    waits = cached_property(MariaDBWaits)
    keys = cached_property(MariaDBRowKeys)
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

    # -- a cluster -------------------------------------------------------------------------------

    def locks_are_local(self, connection: sa.Connection) -> bool:
        return galera.is_node(connection)

    def is_out(self, connection: sa.Connection, error: BaseException) -> bool:
        return number_of(error) == galera.NOT_PREPARED

    def see_all(self, connection: sa.Connection) -> None:
        if galera.is_node(connection):
            galera.see_what_others_have_committed(connection)
