"""One step of a session that is stepped by hand: its value, its error, or that it waits.

Whether it waits for another session's lock is asked of the database itself where it can tell. A
:class:`Watcher` belongs to one session. It learns the session's connections when a transaction
begins, from the driver, without a statement. The question goes over a further connection of the
same pool and past the engine's events, so that logs and counters do not show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from optilock.dialects import database_of
from optilock.errors import OptilockError

__all__ = ["GRACE", "PATIENCE", "OutOfStep", "Step", "Watcher"]


R = TypeVar("R")

#: Seconds after which a step that no database can be asked about counts as blocked.
GRACE = 0.05
#: Seconds that a step may take, unless the test says otherwise.
PATIENCE = 10.0
#: Seconds before the first question to the database, and at least before the next one.
_PAUSE = 0.005


class OutOfStep(OptilockError, AssertionError):
    """The steps did not go as the test says: one waits that should not, or the reverse."""


class Step(Generic[R]):
    """Something that a side is doing, or has done."""

    def __init__(self, name: str, work: Callable[[Any], R], watcher: Watcher) -> None:
        self._name = name
        self._work = work
        self._watcher = watcher
        self._future: Future[R] = Future()
        self._seen = False

    def __repr__(self) -> str:
        return f"<Step of {self._name}, {'ended' if self.ended else 'running'}>"

    @property
    def ended(self) -> bool:
        """Has it ended, well or not?"""
        return self._future.done()

    def result(self, *, timeout: float = PATIENCE) -> R:
        """Wait for the end of the step, and give its value; its error is raised.

        Raises ``OutOfStep`` when it takes longer than ``timeout`` seconds.
        """
        wait([self._future], timeout)
        if not self.ended:
            raise OutOfStep(
                f"{self._name}'s step has not ended within {timeout:g} s: it waits for somebody"
                " else's lock. Let the other one commit first, or start() the step and ask for its"
                " result() later."
            )
        self._seen = True
        return self._future.result()

    def blocked(self, *, timeout: float = PATIENCE) -> Step[R]:
        """Wait until the step waits for a lock, and give the step itself.

        Raises ``OutOfStep`` when it ends instead, or runs for ``timeout`` seconds without waiting.
        """
        begun, pause = time.monotonic(), _PAUSE
        while not wait([self._future], pause).done:
            waits, seconds = self._watcher.waits(), time.monotonic() - begun
            if waits or (waits is None and seconds > GRACE):
                return self
            pause = max(_PAUSE, self._watcher.pause())
            if seconds > timeout:
                raise OutOfStep(
                    f"{self._name}'s step runs for {timeout:g} s and waits for no lock."
                )
        self._seen = True
        raise OutOfStep(
            f"{self._name}'s step was to wait for a lock, and has ended."
        ) from self._future.exception()

    def unseen_error(self) -> BaseException | None:
        """The error of a step that has ended, when nobody has asked for its result."""
        return None if self._seen or not self.ended else self._future.exception()

    def run(self, session: Session) -> None:
        """Called by the side, in its own thread."""
        try:
            value = self._work(session)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(value)


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
