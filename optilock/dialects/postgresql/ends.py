"""How a transaction of PostgreSQL ends before its COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.dialects.ends import Ends
from optilock.dialects.postgresql.line import IDLE
from optilock.dialects.transaction_ends import first_words

#: The commands that end a transaction, and may begin another one (AND CHAIN).
_ENDS = ("COMMIT", "END", "ABORT", "ROLLBACK", "PREPARE")


#: PQTRANS_INERROR of libpq (https://www.postgresql.org/docs/current/libpq-status.html).
_IN_ERROR = 3


class PostgreSQLEnds(Ends):
    def may_restart(self, statement: str) -> bool:
        """Procedures cannot commit in a transaction block; several statements in one text can."""
        return any(word in _ENDS and not to for word, to in first_words(statement))

    fails_whole = True

    def knows_failed(self, connection: Any) -> bool | None:
        pgconn = getattr(connection, "pgconn", None)
        return None if pgconn is None else int(pgconn.transaction_status) == _IN_ERROR

    def transaction_failed(self, connection: Connection) -> bool:
        """COMMIT of a failed transaction is answered with ROLLBACK, and no error.

        psycopg knows the state; over other drivers a statement is sent that does nothing, which a
        failed transaction answers with 25P02.
        """
        try:
            connection.exec_driver_sql("SELECT 1")
        except DBAPIError as error:
            if error.orig is not None and "25P02" in self.database.codes(error.orig):
                return True
            raise
        return False

    def open_transactions(self, connection: Any) -> Callable[[], bool | None]:
        return partial(_is_open, connection)

    def has_open_pipeline(self, connection: Any) -> bool:
        return bool(getattr(getattr(connection, "pgconn", None), "pipeline_status", 0))


def _is_open(connection: Any) -> bool | None:
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is not None:  # psycopg; in a pipeline the answers are still to come
        return None if pgconn.pipeline_status else pgconn.transaction_status != IDLE
    asked = getattr(connection, "is_in_transaction", None)  # asyncpg
    if asked is None:
        asked = getattr(connection, "get_transaction_status", None)  # psycopg2; IDLE is 0
    return None if asked is None else bool(asked())
