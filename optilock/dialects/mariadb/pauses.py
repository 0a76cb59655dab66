"""The end of a transaction whose program pauses while it has locks that it did not ask for.

PostgreSQL sets the limit inside the locking read itself. MariaDB has no function that sets a
variable, so such a read is sent in a compound statement which sets ``idle_transaction_timeout``
first. COMMIT takes the setting back in the same way: neither costs a round trip. After a rollback
it is taken back when the connection returns to its pool.

A limit that the application has set stays.
(https://mariadb.com/kb/en/transaction-timeouts/, https://mariadb.com/kb/en/begin-end/)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa

from optilock._undocumented.statements import is_server_side
from optilock.dialects.connections import goes_with_next_commit, undo_at_checkin
from optilock.dialects.mariadb.commit_tokens import DRIVERS, goes_with_commit
from optilock.dialects.waits import LONGEST_PAUSE

_MARK = "/* optilock: ends with a pause */"
#: True of every row: a read that has it in its WHERE sets the limit.
BOUNDED_LOCKS: sa.ColumnElement[bool] = sa.literal_column(f"1 {_MARK}", sa.Boolean())

_NAME = "idle_transaction_timeout"
_SET = (
    f"SET @optilock_pause = @@{_NAME} = 0, SESSION {_NAME} ="
    f" IF(@@{_NAME} = 0, {math.ceil(LONGEST_PAUSE)}, @@{_NAME})"
)
_UNSET = f"SET SESSION {_NAME} = IF(@optilock_pause, 0, @@{_NAME}), @optilock_pause = NULL"


def watch_marks(dialect: sa.Dialect) -> bool:
    """Return whether the limit can be set; from then on, marked statements of the engine do so."""
    if dialect.driver not in DRIVERS or not getattr(dialect, "is_mariadb", False):
        return False
    execute: Any = dialect.do_execute
    if getattr(execute, "func", None) is not _execute:
        setattr(dialect, "do_execute", partial(_execute, execute))  # noqa: B010
    return True


def sets_limit(statement: str) -> bool:
    """Return whether a statement is one of these compound statements."""
    return statement.startswith(f"BEGIN NOT ATOMIC {_SET}")


def _execute(original: Callable[..., None], cursor: Any, statement: str, *rest: Any) -> None:
    if _MARK in statement and rest and _set_afterwards(rest[-1]):
        statement = f"BEGIN NOT ATOMIC {_SET};\n{statement};\nEND"
    original(cursor, statement, *rest)


def _set_afterwards(context: Any) -> bool:
    """Return whether to set the limit with this statement: it is taken back after the end."""
    connection: sa.Connection = context.root_connection
    driver = connection.connection.driver_connection
    if is_server_side(context) or goes_with_next_commit(driver, _UNSET):
        return False
    if not goes_with_commit(connection, _UNSET):
        return False
    undo_at_checkin(connection, partial(_take_back, driver))
    return True


def _take_back(driver: Any, dbapi_connection: Any) -> None:
    if goes_with_next_commit(driver, _UNSET):  # no COMMIT was sent
        cursor = dbapi_connection.cursor()
        try:
            cursor.execute(_UNSET)
        finally:
            cursor.close()
