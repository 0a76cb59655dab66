"""Commit tokens of PostgreSQL: psycopg sends the INSERT and COMMIT as one simple query.

The first error of a simple query ends it, so COMMIT is not carried out after an INSERT that fails.
In a pipelined unit the INSERT is one more command before COMMIT (:mod:`line`). Other drivers send
it as a statement of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from sqlalchemy import Connection, text

from optilock.dialects.commit_tokens import CommitTokens, name_of_table
from optilock.dialects.connections import cover_commit, with_own_commit
from optilock.dialects.locks import BEGINS
from optilock.dialects.postgresql.line import IDLE, Line
from optilock.dialects.rows import execute_unguarded
from optilock.dialects.waits import Wait

_ADD = "INSERT INTO {table} (token, created_at) VALUES ('{token}', clock_timestamp())"
#: Values as hexadecimal digits: no quote and no backslash, whatever the settings are.
_SET = "UPDATE {table} SET result = {result} WHERE token = {token}"
#: In one trip, and with the setting as it was: the main SELECT comes last, and in this order.
_INSERT_WITHIN = (
    "WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS was,"
    " set_config('lock_timeout', :within, true) AS becomes),"
    " made AS (INSERT INTO {table} (token, fingerprint, created_at)"
    " SELECT :token, :fingerprint, clock_timestamp() FROM before"
    " ON CONFLICT (token) DO NOTHING RETURNING 1)"
    " SELECT (SELECT count(*) FROM made),"
    " set_config('lock_timeout', (SELECT was FROM before), true)"
)


class PostgreSQLTokens(CommitTokens):
    def insert(
        self, connection: Connection, token: str, fingerprint: str, wait: Wait | None = None
    ) -> bool:
        if wait is None or wait.milliseconds is None:
            return super().insert(connection, token, fingerprint)
        within = f"{max(1, wait.milliseconds)}ms"  # 0 is no limit
        row = {"token": token, "fingerprint": fingerprint, "within": within}
        insert = text(_INSERT_WITHIN.format(table=name_of_table(connection)))
        return bool(execute_unguarded(connection, insert, row).scalar())

    def add(self, connection: Connection, token: str) -> None:
        sql = _ADD.format(table=name_of_table(connection), token=token)
        if not goes_with_commit(connection, sql):
            super().add(connection, token)

    def set_result(self, connection: Connection, token: str, result: str) -> None:
        table = name_of_table(connection)
        sql = _SET.format(table=table, result=literal(result), token=literal(token))
        if not goes_with_commit(connection, sql):
            super().set_result(connection, token, result)


def literal(value: str) -> str:
    """Return the text in SQL, for any settings of the server."""
    return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"


def goes_with_commit(connection: Connection, sql: str, *, in_pipelines: bool = True) -> bool:
    """Let ``sql`` go with COMMIT; ``False``: the driver cannot, and nothing has changed.

    A pipelined unit has room for one statement (``in_pipelines``).
    """
    driver: Any = connection.connection.driver_connection
    its_own: Any = getattr(type(driver), "commit", None)
    if getattr(its_own, "__module__", "").partition(".")[0] != "psycopg":
        return False  # another driver's, or the application's own
    line, cursor = connection.info.get(BEGINS), driver.cursor
    if isinstance(line, Line):
        if not in_pipelines:
            return False
        line.before_commit = sql.encode()
        cursor = partial(line.cursor, driver)
    commit = _commit_async if iscoroutinefunction(its_own) else _commit
    cover_commit(connection, driver, partial(commit, driver, cursor), sql)
    return True


def _commit(driver: Any, cursor: Callable[[], Any], sql: list[str]) -> None:
    if with_own_commit(driver).pgconn.transaction_status != IDLE:  # psycopg's own does nothing then
        cursor().execute("; ".join([*sql, "COMMIT"]), prepare=False)


async def _commit_async(driver: Any, cursor: Callable[[], Any], sql: list[str]) -> None:
    if with_own_commit(driver).pgconn.transaction_status != IDLE:
        await cursor().execute("; ".join([*sql, "COMMIT"]), prepare=False)
