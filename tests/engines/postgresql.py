"""PostgreSQL: from a URL, from the embedded server's wheel, or from a container."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import create_engine, text

from optilock.testing import servers
from tests.engines.target import Target
from tests.engines.urls import container, given

FAMILY = "postgresql"
NAMES = ("postgresql",)


def start(stack: ExitStack) -> str:
    url = given("OPTILOCK_TEST_POSTGRESQL_URL")
    if url is not None:
        return url
    try:
        return stack.enter_context(servers.postgresql()).url
    except servers.ServerMissing:
        url = container(stack, "postgresql")
        if url is None:
            raise
        return url


def target(name: str, server: str, folder: Path) -> Target:
    _empty(server)
    return Target(
        name=name,
        family=FAMILY,
        url=server,
        capabilities=frozenset({"row-locks", "server", "resolves-in-place", "batch-statement"}),
    )


def _empty(server: str) -> None:
    engine = create_engine(server)
    with engine.begin() as connection:
        # Not for ever, when a test has left a transaction open.
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        connection.execute(text("SET LOCAL client_min_messages = warning"))
        connection.execute(text(_DROP))
    engine.dispose()


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
