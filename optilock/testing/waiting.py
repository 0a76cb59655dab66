"""Does a session wait for another one's lock? Asked of the database itself where it can tell.

A :class:`Watcher` belongs to one session. It learns the session's connections when a transaction
begins, from the driver, without a statement. The question goes over a further connection of the
same pool and past the engine's events, so that logs and counters do not show it.
"""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, SessionTransaction

from optilock.dialects import database_of

__all__ = ["Watcher"]


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

    def pause(self) -> float:
        """Seconds to the next question, so that the answer is a new one."""
        return max((_pause(engine) for engine, _ in tuple(self._places)), default=0.0)

    def _after_begin(self, session: Session, _: SessionTransaction, connection: Connection) -> None:
        self._places.append((connection.engine, _number(connection)))

    def _after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._places.clear()


def _pause(engine: Engine) -> float:
    return database_of(engine.dialect).lock_question_pause


def _number(connection: Connection) -> int | None:
    dialect = connection.dialect
    if dialect.is_async:  # another thread could not await the answer
        return None
    return database_of(dialect).number_of(connection.connection.dbapi_connection)


def _waits(engine: Engine, number: int | None) -> bool | None:
    question = database_of(engine.dialect).lock_question
    if number is None or question is None:
        return None
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(question.format(number))
        answer = cursor.fetchone()
    return bool(answer and answer[0])
