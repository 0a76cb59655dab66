"""Connections of PostgreSQL that wait for a lock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from optilock.dialects.watching import Watching


class PostgreSQLWatching(Watching):
    lock_question = "SELECT cardinality(pg_blocking_pids({})) > 0"

    #: The transaction that closes a circle is then always the one that is ended. Superusers only.
    #: With a limit of the application's own, a unit sets no brief one: how long it waits is then
    #: the choice of the watching thread, and not of a clock.
    watched_settings = (
        "SET deadlock_timeout = '1ms'",
        "SELECT set_config('lock_timeout', '59s', false)"
        " WHERE current_setting('lock_timeout') = '0'",
    )

    def number_of(self, connection: Any) -> int | None:
        known = getattr(getattr(connection, "info", None), "backend_pid", None)  # psycopg
        if known is None and hasattr(connection, "get_server_pid"):  # asyncpg
            known = connection.get_server_pid()
        return known if isinstance(known, int) else None

    def who_waits(self, cursor: Any, numbers: Collection[int]) -> frozenset[int]:
        listed = ", ".join(map(str, numbers))
        cursor.execute(
            f"SELECT pid FROM unnest(ARRAY[{listed}]) AS pid"
            " WHERE cardinality(pg_blocking_pids(pid)) > 0"
        )
        return frozenset(number for (number,) in cursor.fetchall())
