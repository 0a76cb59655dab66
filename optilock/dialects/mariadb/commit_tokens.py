"""Commit tokens of MariaDB: the INSERT and COMMIT are one compound statement.

``BEGIN NOT ATOMIC`` needs no setting of the connection, and an error of the INSERT leaves it before
COMMIT. INSERT IGNORE would cut a token that is too long and take another one for it, so the plain
INSERT asks, and error 1062 is the answer; it undoes its statement alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from optilock.dialects.commit_tokens import CommitTokens, name_of_table
from optilock.dialects.connections import cover_commit, undo_at_checkin, with_own_commit
from optilock.dialects.mariadb.values import MariaDBValues
from optilock.dialects.rows import execute_unguarded
from optilock.dialects.waits import Wait
from optilock.tokens.sql_functions import ServerTime

_DUPLICATE = 1062
#: Drivers whose ``query()`` sends a statement as it is.
DRIVERS = ("pymysql", "asyncmy")


class MariaDBTokens(CommitTokens):
    def insert(
        self, connection: Connection, token: str, fingerprint: str, wait: Wait | None = None
    ) -> bool:
        sql = f"INSERT INTO {name_of_table(connection)} (token, fingerprint, created_at)"
        sql += f" VALUES (:token, :fingerprint, {self._now})"
        if wait is not None and wait.seconds is not None:
            sql = _within(connection, sql, math.ceil(wait.seconds))
        try:
            row = {"token": token, "fingerprint": fingerprint}
            execute_unguarded(connection, text(sql), row).close()
        except IntegrityError as error:
            if _DUPLICATE in self.database.codes(error.orig):  # type: ignore[arg-type]
                return False
            raise
        return True

    def _newest(self, query: Any) -> Any:
        return query.with_for_update(read=True)  # a snapshot may be older than the row

    def add(self, connection: Connection, token: str) -> None:
        table = name_of_table(connection)
        sql = f"INSERT INTO {table} (token, created_at) VALUES ('{token}', {self._now})"
        if not goes_with_commit(connection, sql):
            super().add(connection, token)

    def set_result(self, connection: Connection, token: str, result: str) -> None:
        table = name_of_table(connection)
        sql = f"UPDATE {table} SET result = {literal(result)} WHERE token = {literal(token)}"
        if not goes_with_commit(connection, sql):
            super().set_result(connection, token, result)

    @property
    def _now(self) -> str:
        return MariaDBValues.sql_functions[ServerTime]


def _within(connection: Connection, sql: str, seconds: int) -> str:
    """Limit the wait for locks; MySQL has no setting for one statement, and no wait of 0."""
    if getattr(connection.dialect, "is_mariadb", False):
        return f"SET STATEMENT innodb_lock_wait_timeout={seconds} FOR {sql}"
    name = "SET SESSION innodb_lock_wait_timeout = "
    undo_at_checkin(connection, f"{name}DEFAULT")
    execute_unguarded(connection, text(f"{name}{max(1, seconds)}"))
    return sql


def literal(value: str) -> str:
    """Return the text in SQL, for any settings of the server."""
    return f"CONVERT(X'{value.encode().hex()}' USING utf8mb4)"


def goes_with_commit(connection: Connection, sql: str) -> bool:
    """Let ``sql`` go with COMMIT; ``False``: the driver or server cannot; nothing has changed."""
    dialect, driver = connection.dialect, connection.connection.driver_connection
    if dialect.driver not in DRIVERS or not getattr(dialect, "is_mariadb", False):
        return False
    if type(driver).__module__.partition(".")[0] != dialect.driver:
        return False  # the application's own class
    commit: Callable[..., Any] = _commit_async if dialect.is_async else _commit
    cover_commit(connection, driver, partial(commit, driver), sql)
    return True


def _commit(driver: Any, sql: list[str]) -> None:
    with_own_commit(driver).query(_whole(sql))


async def _commit_async(driver: Any, sql: list[str]) -> None:
    await with_own_commit(driver).query(_whole(sql))


def _whole(sql: list[str]) -> str:
    return f"BEGIN NOT ATOMIC {'; '.join(sql)}; COMMIT; END"
