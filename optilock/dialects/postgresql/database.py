"""PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Connection,
    Dialect,
    Insert,
    Select,
    Table,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from optilock.conditions.write import Params, Write
from optilock.dialects.base import (
    Changes,
    Database,
    Form,
    NoteTrip,
    cannot_pipeline,
)
from optilock.dialects.catalogue import Catalogue, Weakness
from optilock.dialects.commit_tokens import CommitTokens
from optilock.dialects.migrations import Names, TriggerDDL
from optilock.dialects.postgresql.causes import PostgreSQLCodes
from optilock.dialects.postgresql.commit_tokens import PostgreSQLTokens
from optilock.dialects.postgresql.cursors import describe_once, open_line
from optilock.dialects.postgresql.ends import PostgreSQLEnds
from optilock.dialects.postgresql.isolation import PostgreSQLIsolationLevels
from optilock.dialects.postgresql.last_writes import LOCK_TIMEOUT, LastWrites
from optilock.dialects.postgresql.line import IDLE, has_pipelines
from optilock.dialects.postgresql.locks import PostgreSQLRowLocks
from optilock.dialects.postgresql.migrations import (
    PostgreSQLCatalogue,
    PostgreSQLGuard,
    PostgreSQLWays,
    version_trigger,
)
from optilock.dialects.postgresql.queue_sql import PostgreSQLMessages
from optilock.dialects.postgresql.rows import (
    PLAIN,
    all_or_error,
    one_or_error,
    set_form,
)
from optilock.dialects.postgresql.scope_rows import PostgreSQLScopeRows
from optilock.dialects.postgresql.scope_triggers import PostgreSQLScopeTriggers
from optilock.dialects.postgresql.values import PostgreSQLValues
from optilock.dialects.postgresql.waits import PostgreSQLWaits
from optilock.dialects.postgresql.watching import PostgreSQLWatching
from optilock.dialects.postgresql.weak_settings import NO_BUMP, weak_settings
from optilock.dialects.queue_sql import Messages, Place
from optilock.dialects.registry import register
from optilock.dialects.scope_rows import ScopeRows
from optilock.errors import ConfigurationError
from optilock.undocumented.connections import skips_rollback


@register
class PostgreSQL(PostgreSQLCodes, Database):
    names = ("postgresql",)

    locks = cached_property(PostgreSQLRowLocks)
    waits = cached_property(PostgreSQLWaits)
    isolation = cached_property(PostgreSQLIsolationLevels)
    ends = cached_property(PostgreSQLEnds)
    watching = cached_property(PostgreSQLWatching)
    values = cached_property(PostgreSQLValues)

    # -- versions that the database makes --------------------------------------------------------

    def version_trigger(self, names: Names) -> TriggerDDL:
        return version_trigger(names)

    # -- how rows are written --------------------------------------------------------------------

    def describe_once(self, dialect: Dialect) -> None:
        describe_once(dialect)

    def form(self, writes: list[Write], dialect: Dialect, *, locked: bool = False) -> Form:
        form = set_form(self, writes, dialect, locked=locked)
        return super().form(writes, dialect, locked=locked) if form is None else form

    def all_or_error(self, writes: list[Write], dialect: Dialect) -> tuple[Any, Params] | None:
        if len(writes) == 1 and writes[0].shape.demanded in PLAIN:
            return one_or_error(writes[0])
        form = set_form(self, writes, dialect)
        places = None if form is None else form.places(writes)
        return None if form is None or places is None else (form.or_error, places)

    def found_or_error(self, query: Select[Any], rows: int) -> Any:
        found = query.cte("optilock_found").prefix_with("MATERIALIZED")
        return all_or_error(found, literal_column(str(rows)))

    # -- one row by its key ----------------------------------------------------------------------

    def insert_unless(self, table: Table) -> Insert:
        return insert(table).on_conflict_do_nothing(index_elements=[*table.primary_key])

    def upsert(self, table: Table, changes: Changes) -> Insert:
        made = insert(table)
        return made.on_conflict_do_update(
            index_elements=[*table.primary_key], set_=changes(made.excluded)
        )

    # -- how a table is changed while it is written ----------------------------------------------

    guard_triggers = PostgreSQLGuard
    scope_triggers = PostgreSQLScopeTriggers
    rollout = PostgreSQLWays

    def announce_no_bump(self, connection: Connection, *, on: bool) -> None:
        setting = select(func.set_config(NO_BUMP, "on" if on else "off", True))
        type(connection).execute(connection, setting)  # not through the guard of a running flush

    # -- what makes it weaker than it looks -------------------------------------------------------

    def weak_settings(self, connection: Connection) -> Iterator[Weakness]:
        return weak_settings(connection)

    def catalogue(self, connection: Connection, schema: str | None) -> Catalogue:
        return PostgreSQLCatalogue(connection, schema)

    # -- queues ----------------------------------------------------------------------------------

    def messages(self, place: Place) -> Messages:
        return PostgreSQLMessages(place)

    def commit_tokens(self) -> CommitTokens:
        return PostgreSQLTokens(self)

    @cached_property
    def scope_rows(self) -> ScopeRows:
        return PostgreSQLScopeRows(self)

    # -- isolation -------------------------------------------------------------------------------

    def refuse_pipeline(self, dialect: Dialect) -> None:
        if not _is_psycopg(dialect):
            raise ConfigurationError(cannot_pipeline(dialect))
        if not has_pipelines():
            raise ConfigurationError(
                "pipelined=True needs psycopg over libpq 14 or newer, which has pipelines. Install"
                " psycopg[binary], or leave pipelined=True out. Nothing was sent."
            )
        if skips_rollback(dialect):
            raise ConfigurationError(
                "pipelined=True does not go with create_engine(skip_autocommit_rollback=True): it"
                " brings the driver into its autocommit mode for the length of the unit, and"
                " SQLAlchemy would then send no ROLLBACK. Leave one of them out. Nothing was sent."
            )

    def pipelined(
        self,
        connection: Connection,
        *,
        interruptible: bool,
        note_trip: NoteTrip | None = None,
    ) -> LastWrites | None:
        limit = LOCK_TIMEOUT if interruptible else None
        line = open_line(connection, limit=limit, note_trip=note_trip)
        return None if line is None else LastWrites(line, careful=note_trip is not None)

    def is_out(self, connection: Connection, error: BaseException) -> bool:
        """A standby, which reports itself as one (from PostgreSQL 14).

        A role or a transaction that may only read has the same SQLSTATE, and would have it again.
        """
        if "25006" not in self.codes(error):
            return False
        return _reported(connection.connection.driver_connection, "in_hot_standby") == "on"


def _in_transaction(driver: Any) -> bool:
    """Return whether psycopg, or asyncpg, has sent BEGIN."""
    pgconn = getattr(driver, "pgconn", None)
    if pgconn is not None:
        return int(pgconn.transaction_status) != IDLE
    return bool(driver.is_in_transaction())


def _reported(driver: Any, parameter: str) -> str | None:
    """Return a parameter as the server last reported it; psycopg and asyncpg keep that."""
    if hasattr(driver, "get_settings"):
        return getattr(driver.get_settings(), parameter, None)
    ask = getattr(getattr(driver, "info", None), "parameter_status", None)
    return None if ask is None else ask(parameter)


def _is_psycopg(dialect: Dialect) -> bool:
    return dialect.driver == "psycopg"
