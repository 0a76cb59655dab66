"""PostgreSQL: from a URL, from the embedded server's wheel, or from a container."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from optilock_apps import servers
from sqlalchemy import Connection, Engine, text

from tests.engines.kept import Kept
from tests.engines.kept_tables import KeptTables
from tests.engines.target import Target
from tests.engines.urls import container, given, kept_open, look_for, own_database

FAMILY, TITLE = "postgresql", "PostgreSQL"
NAMES = ("postgresql",)
CAPABILITIES = {
    "postgresql": frozenset({"row-locks", "server", "resolves-in-place", "batch-statement"})
}
VARIABLE = "OPTILOCK_TEST_POSTGRESQL_URL"
_KEPT = Kept()
_SETTINGS = {
    "autovacuum": "off",
    "jit": "off",
    "synchronous_commit": "off",
    # Or optilock would end units with learned locks that a busy machine stops for a second.
    "idle_in_transaction_session_timeout": "600s",
}


def look() -> None:
    look_for(VARIABLE, servers._package)


def start(stack: ExitStack) -> Engine:
    # Not for ever, when a test has left a transaction open.
    settings = "SET lock_timeout = '5s'; SET client_min_messages = warning"
    server = kept_open(stack, _url(stack), settings)
    stack.callback(_KEPT.close)
    return server


def _url(stack: ExitStack) -> str:
    url = given(VARIABLE)
    if url is not None:
        return own_database(stack, url, VARIABLE)
    try:
        return stack.enter_context(servers.postgresql(_SETTINGS)).url
    except servers.ServerMissing:
        url = container(stack, FAMILY)
        if url is None:
            raise
        return url


def target(name: str, server: Engine, folder: Path, module: Path | None) -> Target:
    _TABLES.begin(server, module)
    return Target(
        name=name,
        family=FAMILY,
        url=server.url.render_as_string(hide_password=False),
        capabilities=CAPABILITIES[name],
        connect=_KEPT.connect,
        like=server,
        tables=_TABLES if module is not None else None,
    )


#: What tests leave behind: tables, types and schemas of their own.
_DROP = """
DO $$
DECLARE name text;
BEGIN
    FOR name IN
        SELECT nspname FROM pg_namespace
        WHERE nspname <> 'information_schema' AND NOT starts_with(nspname, 'pg_')
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
END $$
"""


def _drop(connection: Connection) -> None:
    connection.execute(text(_DROP))


_TABLES = KeptTables(_drop)
