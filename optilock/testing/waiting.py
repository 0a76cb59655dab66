"""Does a session wait for another one's lock? Asked of the database itself where it can tell.

A :class:`Watcher` belongs to one session. It learns the session's connections when a transaction
begins, from the driver, without a statement. The question goes over a further connection of the
same pool and past the engine's events, so that logs and counters do not show it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, SessionTransaction

__all__ = ["Watcher"]

_INNODB = (
    "SELECT count(*) > 0 FROM information_schema.innodb_trx"
    " WHERE trx_mysql_thread_id = {} AND trx_state = 'LOCK WAIT'"
)
#: Whether a connection of the server waits for a lock; ``{}`` is its number there.
_QUESTIONS = {
    "postgresql": "SELECT cardinality(pg_blocking_pids({})) > 0",
    "mysql": _INNODB,
    "mariadb": _INNODB,
}
#: Driver -> the number of a connection on its server, which the driver knows.
_NUMBERS: dict[str, Callable[[Any], int]] = {
    "psycopg": lambda connection: int(connection.info.backend_pid),
    "psycopg2": lambda connection: int(connection.info.backend_pid),
    "pymysql": lambda connection: int(connection.thread_id()),
    "mysqldb": lambda connection: int(connection.thread_id()),
}


class Watcher:
    """Watches the connections of one session; asked from another thread."""

    def __init__(self, session: Session) -> None:
        self._places: list[tuple[Engine, int | None]] = []
        event.listen(session, "after_begin", self._after_begin)
        event.listen(session, "after_transaction_end", self._after_transaction_end)

    def waits(self) -> bool | None:
        """Does the session wait for a lock? ``None`` where the database cannot tell."""
        answers = [_waits(engine, number) for engine, number in tuple(self._places)]
        if any(answers):
            return True
        return None if None in answers else False

    def _after_begin(self, session: Session, _: SessionTransaction, connection: Connection) -> None:
        self._places.append((connection.engine, _number(connection)))

    def _after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._places.clear()


def _number(connection: Connection) -> int | None:
    dialect = connection.dialect
    if dialect.name not in _QUESTIONS or dialect.driver not in _NUMBERS:
        return None
    return _NUMBERS[dialect.driver](connection.connection.dbapi_connection)


def _waits(engine: Engine, number: int | None) -> bool | None:
    if number is None:
        return None
    question = _QUESTIONS[engine.dialect.name].format(number)
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(question)
        answer = cursor.fetchone()
    return bool(answer and answer[0])
