"""How a transaction of MariaDB ends before its COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa

from optilock.dialects.ends import Ends
from optilock.dialects.mariadb.causes import OF_ONE_STATEMENT, number_of
from optilock.dialects.mariadb.pauses import sets_limit
from optilock.dialects.transaction_ends import first_words

#: Commands that end no transaction, unless the server's answer shows it (SET autocommit). All
#: others commit (https://mariadb.com/kb/en/sql-statements-that-cause-an-implicit-commit/), or run
#: statements that may.
_STAYS = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "TABLE", "SET", "DO"}
    | {"SHOW", "EXPLAIN", "DESCRIBE", "DESC", "SAVEPOINT", "RELEASE", "KILL", "USE", "GET"}
    | {"PREPARE", "DEALLOCATE", "SIGNAL", "RESIGNAL", "LOAD", "HANDLER", "END"}
)


#: ER_LOCK_WAIT_TIMEOUT
_LOCK_TIMEOUT = 1205


class MariaDBEnds(Ends):
    def ended_by(self, error: BaseException, connection: sa.Connection | None = None) -> bool:
        """1213 deadlock and 1020 snapshot conflict roll back everything; 1205 its statement only.

        With ``innodb_rollback_on_timeout`` 1205 does so, too. The driver only knows the
        server's last answer without an error, so the server is asked.
        (https://mariadb.com/kb/en/mariadb-error-code-reference/)
        """
        number = number_of(error)
        if number in (1020, 1213):
            return True
        if connection is None or number in OF_ONE_STATEMENT:
            return False
        return _has_rolled_back(connection, number)

    def may_restart(self, statement: str) -> bool:
        """A procedure may commit, DDL does; the server's answer shows the state after that."""
        if sets_limit(statement):
            return False
        return any(word not in _STAYS and not to for word, to in first_words(statement))

    def is_without_savepoint(self, error: BaseException) -> bool:
        return number_of(error) == 1305

    def open_transactions(self, connection: Any) -> Callable[[], bool | None]:
        return partial(_is_open, connection)


def _is_open(connection: Any) -> bool | None:
    """SERVER_STATUS_IN_TRANS of the last answer without an error (PyMySQL, asyncmy).

    asyncmy keeps the status before, where the server has sent a zero.
    """
    status, answer = getattr(connection, "server_status", None), None
    if status:
        answer = getattr(connection, "_result", None)
    if answer is not None and not answer.field_count:
        status = answer.server_status
    return None if status is None else bool(status & 1)


def _has_rolled_back(connection: sa.Connection, number: object) -> bool:
    """Return whether the server has no transaction after an error; on MySQL, by its setting."""
    if getattr(connection.dialect, "is_mariadb", False):
        question = "SELECT NOT @@in_transaction"
    elif number == _LOCK_TIMEOUT:
        question = "SELECT @@innodb_rollback_on_timeout"
    else:
        return False
    cursor = connection.connection.cursor()
    try:
        cursor.execute(question)
        answer: Any = cursor.fetchone()
        return bool(answer[0])
    finally:
        cursor.close()
