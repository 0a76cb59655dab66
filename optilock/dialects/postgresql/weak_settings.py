"""Settings that weaken the check of versions on PostgreSQL: one function for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, text

from optilock.dialects.catalogue import Weakness
from optilock.dialects.postgresql.queue_sql import told_process

#: The transaction-local setting that announces ``no_bump``.
NO_BUMP = "optilock.no_bump"

# -- of the connection and the server -------------------------------------------------------------


class Setting(NamedTuple):
    """A setting of the connection, and where it was set (``pg_settings.source``)."""

    value: str
    source: str


class Server(NamedTuple):
    """The settings that were read of a connection."""

    #: The driver's own connection.
    driver: Any
    #: Whether asyncpg prepares under names that another client may use.
    numbered: bool
    #: The number of the process that answers.
    process: int
    settings: Mapping[str, Setting]
    #: Whom ``ALTER ROLE … SET`` or ``ALTER DATABASE … SET`` concern, and that setting.
    stored: tuple[tuple[str, str], ...]


# A setting with a prefix that no module has claimed is not in pg_settings.
_SETTINGS = (
    "SELECT *, pg_backend_pid() FROM (SELECT name, setting, source FROM pg_settings"
    f" UNION ALL SELECT '{NO_BUMP}', current_setting('{NO_BUMP}', true), 'session') AS all_of_them"
)

_STORED = (
    "SELECT concat_ws(' ', 'ROLE ' || quote_ident(r.rolname),"
    " CASE WHEN s.setrole <> 0 AND s.setdatabase <> 0 THEN 'IN' END,"
    " 'DATABASE ' || quote_ident(d.datname)), unnest(s.setconfig)"
    " FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole"
    " LEFT JOIN pg_database d ON d.oid = s.setdatabase"
    " WHERE s.setdatabase = 0 OR d.datname = current_database() ORDER BY 1, 2"
)


def weak_settings(connection: Connection) -> Iterator[Weakness]:
    """Yield the weaknesses in the settings of the driver and the server."""
    rows = connection.execute(text(_SETTINGS)).all()
    server = Server(
        connection.connection.driver_connection,
        _numbers_its_statements(connection),
        rows[0][3],
        {name: Setting(value, source) for name, value, source, _ in rows},
        tuple((of, setting) for of, setting in connection.execute(text(_STORED))),
    )
    for look in OF_SERVER:
        yield from look(server)


def pooled_prepared(server: Server) -> Iterator[Weakness]:
    """Find a driver that prepares statements through a pooler."""
    told = told_process(server.driver)
    if told is None or told == server.process:
        return
    if server.numbered:
        yield Weakness(
            "pooled-prepared",
            False,
            "The engine uses a pooler, and asyncpg prepares every statement under a number: with"
            " transaction pooling the next transaction may be on another server connection,"
            " where the number is free, or stands for another statement.",
            "Give the engine connect_args={'statement_cache_size': 0} (asyncpg 0.31 or later), or"
            " set max_prepared_statements in PgBouncer 1.21 or later.",
        )
    elif getattr(server.driver, "prepare_threshold", None) is not None:
        yield Weakness(
            "pooled-prepared",
            False,
            "The engine uses a pooler, and the driver prepares statements: with transaction"
            " pooling the next transaction may be on another server connection, where they do"
            " not exist.",
            "Give the engine connect_args={'prepare_threshold': None}, or set"
            " max_prepared_statements in PgBouncer 1.21 or later.",
        )


def _numbers_its_statements(connection: Connection) -> bool:
    """Return whether asyncpg prepares statements under names that other clients use, too.

    The server is asked whether this question is such a statement: what the settings of the driver
    come to differs from version to version, and a pooler may rename them.
    """
    if not hasattr(connection.connection.driver_connection, "get_server_pid"):
        return False
    mark = uuid4().hex
    asked = (
        "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE starts_with(name, '__asyncpg_')"
        f" AND position('{mark}' IN statement) > 0)"
    )
    return bool(connection.scalar(text(asked)))


_REPLICA = (
    "no trigger fires, so no RowVersion moves, nothing is guarded, and no foreign key is checked"
)


def replica_role(server: Server) -> Iterator[Weakness]:
    """Find a connection in which the triggers of tables do not fire."""
    role = server.settings.get("session_replication_role")
    if role is not None and role.value == "replica":
        yield Weakness(
            "replica-role",
            True,
            f"session_replication_role is 'replica' in this connection (set by: {role.source}):"
            f" {_REPLICA}.",
            "Take it out of the URL (options=), of connect_args, or of where it is set; only a"
            " program that replicates rows wants it.",
        )


def replica_role_of_others(server: Server) -> Iterator[Weakness]:
    """Find roles and databases in whose connections triggers do not fire."""
    for of, setting in server.stored:
        if setting == "session_replication_role=replica":
            yield Weakness(
                "replica-role",
                True,
                f"session_replication_role is 'replica' for {of or 'everybody'}: in such"
                f" connections {_REPLICA}.",
                f"ALTER {of or 'ROLE ALL'} RESET session_replication_role.",
            )


def no_bump_for_all(server: Server) -> Iterator[Weakness]:
    """Find the setting that disables guard triggers outside of ``no_bump``."""
    here = server.settings[NO_BUMP].value == "on"
    for of in ("this connection",) * here + tuple(
        f"{of or 'everybody'}" for of, setting in server.stored if setting == f"{NO_BUMP}=on"
    ):
        yield Weakness(
            "no-bump",
            True,
            f"{NO_BUMP} is 'on' for {of}: it is for one flush under no_bump() only, and no guard"
            " trigger works as long as it is set.",
            f"ALTER ROLE …, or DATABASE …, RESET {NO_BUMP}; and take it out of the URL.",
        )


OF_SERVER: tuple[Callable[[Server], Iterator[Weakness]], ...] = (
    pooled_prepared,
    replica_role,
    replica_role_of_others,
    no_bump_for_all,
)

# -- of one table ---------------------------------------------------------------------------------

#: SQL of what ``Relation`` has of a table ``c``.
RELATION = "c.relrowsecurity, row_security_active(c.oid)"


class Relation(NamedTuple):
    """The facts that were read of one table."""

    name: str
    #: Whether it has policies that hide rows, and whether they concern this user.
    has_policies: bool
    is_hidden: bool
    #: Rules that do something else: their names, and what they stand in the place of.
    rules: tuple[tuple[str, str], ...]

    def weaknesses(self) -> Iterator[Weakness]:
        for look in OF_TABLE:
            yield from look(self)


def row_security(table: Relation) -> Iterator[Weakness]:
    """Find a table with row-level security."""
    whose = "this user" if table.is_hidden else "users that are neither its owner nor superusers"
    if table.has_policies:
        yield Weakness(
            "row-security",
            False,
            f"Row security hides rows from {whose}: if a row was hidden since it was read, its"
            " write looks like a conflict with a delete. This check has not seen hidden rows.",
            "Check once more as a user with BYPASSRLS; if the policies are not needed: ALTER TABLE"
            f" {table.name} DISABLE ROW LEVEL SECURITY.",
        )


def rule_instead(table: Relation) -> Iterator[Weakness]:
    """Find a table with a rule that replaces UPDATE or DELETE."""
    for name, event in table.rules:
        yield Weakness(
            "rule",
            True,
            f"The rule {name} replaces every {event} (DO INSTEAD): the count of rows is not that of"
            " the written rows, so writes are refused, or lost.",
            f"DROP RULE {name} ON {table.name}; a trigger can do the same.",
        )


OF_TABLE: tuple[Callable[[Relation], Iterator[Weakness]], ...] = (row_security, rule_instead)
