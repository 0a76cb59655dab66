"""Sessions that are stepped by hand, in the order that is written in the test.

::

    from optilock.testing import interleave

    def test_the_second_editor_is_told(SessionLocal):
        with interleave(SessionLocal, "alice", "bob") as (alice, bob):
            page = alice.do(lambda session: session.get_one(Page, 1))
            bob.do(lambda session: rename(session, "Bob's title"))
            bob.commit()

            page.title = "Alice's title"
            with pytest.raises(ConcurrencyError):
                alice.commit()

Every side has a session and a thread of its own. ``do`` runs a step there, waits for it, and
returns its value or raises its error. Use ``start`` for a step that will wait for a lock, so that
the others go on::

            alice.do(lambda session: session.flush())       # has the row's lock
            step = bob.start(lambda session: session.flush())
            step.blocked()                                  # bob waits for it
            alice.commit()
            step.result()                                   # bob's value or error

Pass a ``sessionmaker`` (watched or not), an ``Engine``, or a function that returns a session
context manager. ``lambda: unit_of_work(SessionLocal)`` steps units of work; ``leave()`` is then the
end of the block, where the unit commits.

Nothing sleeps for a result. ``blocked()`` asks PostgreSQL and MariaDB whether the connection waits
for a lock, over one more connection of the same pool. SQLite cannot answer: there a step that has
begun a transaction and has not ended after ``GRACE`` seconds counts as blocked, so give such
engines a longer ``timeout`` in their ``connect_args``.

At the end of the block every session is rolled back and closed, those that wait for others last. An
error of a step without a call of ``result()`` is raised there. Objects may be read and changed
between the steps; code that loads from the database belongs in a step. No wait is longer than
``PATIENCE`` seconds without a ``timeout=``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing, contextmanager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from optilock.dialects import database_of
from optilock.errors import ConfigurationError, OptilockError
from optilock.unit.membership import Membership

S = TypeVar("S", bound=Session)
R = TypeVar("R")


# -- one step --------------------------------------------------------------------------------------


#: Seconds after which a step on SQLite counts as blocked.
GRACE = 0.05
#: Seconds that a step may take without a ``timeout=``.
PATIENCE = 10.0
#: Seconds before the first question to the database, and at least before the next one.
_PAUSE = 0.005


class OutOfStep(OptilockError, AssertionError):
    """The steps did not go as written in the test: one waits that should not, or the reverse."""


class Step(Generic[R]):
    """A piece of work that a side is doing, or has done."""

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
        """Whether the step has ended, with a value or an error."""
        return self._future.done()

    def result(self, *, timeout: float = PATIENCE) -> R:
        """Wait for the end of the step, and return its value or raise its error.

        Raises ``OutOfStep`` when it takes longer than ``timeout`` seconds.
        """
        wait([self._future], timeout)
        if not self.ended:
            raise OutOfStep(
                f"{self._name}'s step has not ended within {timeout:g} s: it waits for another"
                " side's lock. Let the other one commit first, or start() the step and call its"
                " result() later."
            )
        self._seen = True
        return self._future.result()

    def blocked(self, *, timeout: float = PATIENCE) -> Step[R]:
        """Wait until the step waits for a lock, and return the step itself.

        Raises ``OutOfStep`` when it ends instead, or runs for ``timeout`` seconds without waiting.
        """
        begun, pause, is_new = time.monotonic(), _PAUSE, False
        while not wait([self._future], pause).done:
            rest = self._watcher.pause()
            waits, seconds = self._watcher.waits(), time.monotonic() - begun
            if (waits and is_new) or (waits is None and seconds > GRACE):
                return self
            # MariaDB may answer the first question with what was true of an earlier step.
            pause, is_new = max(_PAUSE, rest), rest > 0
            if seconds > timeout:
                raise OutOfStep(
                    f"{self._name}'s step runs for {timeout:g} s and waits for no lock."
                )
        self._seen = True
        raise OutOfStep(
            f"{self._name}'s step was to wait for a lock, and has ended."
        ) from self._future.exception()

    def unseen_error(self) -> BaseException | None:
        """Return the error of an ended step without a call of ``result()``."""
        return None if self._seen or not self.ended else self._future.exception()

    def run(self, session: Session) -> None:
        """Do the work; the side calls this in its own thread."""
        try:
            value = self._work(session)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(value)


class Watcher:
    """The connections of one session, and whether they wait for a lock.

    It learns the connections when a transaction begins, from the driver, without a statement.
    Another thread asks the database, over a further connection of the same pool and without the
    engine's events, so that logs and counters do not show the question.
    """

    def __init__(self, session: Session) -> None:
        self._places: list[tuple[Engine, int | None]] = []
        event.listen(session, "after_begin", self._after_begin)
        event.listen(session, "after_transaction_end", self._after_transaction_end)

    def waits(self) -> bool | None:
        """Return whether the session waits for a lock; ``None`` if the database cannot tell."""
        answers = [_waits(engine, number) for engine, number in tuple(self._places)]
        if any(answers):
            return True
        return None if None in answers else False

    def pause(self) -> float:
        """Return the seconds to the next question, so that its answer is new; 0 without one."""
        return max((_pause(engine) for engine, _ in tuple(self._places)), default=0.0)

    def _after_begin(self, session: Session, _: SessionTransaction, connection: Connection) -> None:
        self._places.append((connection.engine, _number(connection)))

    def _after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._places.clear()


def _pause(engine: Engine) -> float:
    return database_of(engine.dialect).watching.lock_question_pause


def _number(connection: Connection) -> int | None:
    dialect = connection.dialect
    if dialect.is_async:  # another thread could not await the answer
        return None
    return database_of(dialect).watching.number_of(connection.connection.dbapi_connection)


def _waits(engine: Engine, number: int | None) -> bool | None:
    question = database_of(engine.dialect).watching.lock_question
    if number is None or question is None:
        return None
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(question.format(number))
        answer = cursor.fetchone()
    return bool(answer and answer[0])


@contextmanager
def interleave(
    sessions: Callable[[], AbstractContextManager[S]] | Engine, *names: str
) -> Iterator[tuple[Side[S], ...]]:
    """Make one :class:`Side` for each name, with a session of its own.

    Raises:
        ConfigurationError: there are no names, two are equal, or ``sessions`` makes no sessions.
    """
    check_names("interleave", names)
    make = _factory(sessions)
    sides: list[Side[S]] = []
    try:
        for name in names:
            sides.append(Side(name, make))
        yield tuple(sides)
    except BaseException:
        _end(sides)
        raise
    _end(sides)
    stuck = [side.name for side in sides if not side.has_left(0)]
    if stuck:
        raise OutOfStep(
            f"{', '.join(stuck)} did not end within {PATIENCE:g} s: a step waits for a lock held"
            " outside interleave()."
        )
    for error in (error for side in sides for error in side.unseen_errors()):
        raise error


def check_names(call: str, names: tuple[str, ...]) -> None:
    """Refuse sides without a name, or with the same one.

    Raises:
        ConfigurationError: there are no names, or two are equal.
    """
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"{call}() got the names {names!r}: name every side once, for example"
            f' {call}(SessionLocal, "alice", "bob").'
        )


def _factory(sessions: Any) -> Callable[[], AbstractContextManager[Any]]:
    if isinstance(sessions, Engine):
        return lambda: Session(sessions)
    if isinstance(sessions, Membership) or not callable(sessions):
        raise ConfigurationError(
            "interleave() needs a sessionmaker, an Engine or a function that returns a session,"
            f" such as lambda: unit_of_work(SessionLocal). Got {sessions!r}."
        )
    return cast("Callable[[], AbstractContextManager[Any]]", sessions)


def _end(sides: list[Side[S]]) -> None:
    """Roll back and close; a side that waits for a lock gets it from those that end before."""
    for side in sides:
        side.abandon()
    for side in sides:
        side.has_left(PATIENCE)


class Side(Generic[S]):
    """One of the sessions that work at the same time."""

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[S]]) -> None:
        self.name = name
        self._make = make
        self._inbox: SimpleQueue[Step[Any] | None] = SimpleQueue()
        self._steps: list[Step[Any]] = []
        self._abandoned = False
        self._made: Future[Watcher] = Future()
        self._left: Future[None] = Future()
        # A daemon: a step that waits for ever must not keep the program from ending.
        threading.Thread(target=self._live, name=f"interleave-{name}", daemon=True).start()
        self._watcher = self._made.result()

    def __repr__(self) -> str:
        return f"<Side {self.name}>"

    def do(self, step: Callable[[S], R], *, timeout: float = PATIENCE) -> R:
        """Run ``step`` with the session, wait for it, and return its value or raise its error.

        Raises ``OutOfStep`` when it takes longer than ``timeout`` seconds.
        """
        return self.start(step).result(timeout=timeout)

    def start(self, step: Callable[[S], R]) -> Step[R]:
        """Run ``step`` with the session, and do not wait for it.

        Raises ``OutOfStep`` when an earlier step still runs, or when the side has left.
        """
        self._require_no_step()
        if self._left.done():
            raise OutOfStep(f"{self.name} has left: there is no session to run a step with.")
        started = Step(self.name, step, self._watcher)
        self._steps.append(started)
        self._inbox.put(started)
        return started

    def flush(self) -> None:
        """Flush the session."""
        self.do(lambda session: session.flush())

    def commit(self) -> None:
        """Commit the session's transaction."""
        self.do(lambda session: session.commit())

    def rollback(self) -> None:
        """Roll the session's transaction back."""
        self.do(lambda session: session.rollback())

    def leave(self, *, timeout: float = PATIENCE) -> None:
        """End the block around the session: a unit of work commits, a plain session is closed.

        Raises what the end of the block raises, and ``OutOfStep`` when it takes longer than
        ``timeout`` seconds or an earlier step still runs.
        """
        self._require_no_step()
        self._inbox.put(None)
        if not self.has_left(timeout):
            raise OutOfStep(f"{self.name} did not leave within {timeout:g} s.")
        self._left.result()

    def abandon(self) -> None:
        """End the block as an error would, once a running step has ended; nothing is committed."""
        if not self._left.done():
            self._abandoned = True
            self._inbox.put(None)

    def has_left(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for the end of the block; return whether it came."""
        try:
            self._left.exception(timeout)
        except TimeoutError:
            return False
        return True

    def unseen_errors(self) -> list[BaseException]:
        """Return the errors of steps without ``result()``, and of an end without ``leave()``."""
        errors = [step.unseen_error() for step in self._steps]
        if self._abandoned and self._left.done():
            errors.append(self._left.exception())
        return [error for error in errors if error is not None]

    def _require_no_step(self) -> None:
        if self._steps and not self._steps[-1].ended:
            raise OutOfStep(
                f"{self.name} is still in an earlier step, which has not ended: ask that one for"
                " its result() first."
            )

    def _live(self) -> None:
        try:
            self._run_steps()
        except _Abandoned:
            self._left.set_result(None)
        except BaseException as error:
            self._left.set_exception(error)
            if not self._made.done():
                self._made.set_exception(error)
        else:
            self._left.set_result(None)

    def _run_steps(self) -> None:
        with _checked(self._make()) as session:
            self._made.set_result(Watcher(session))
            while (step := self._inbox.get()) is not None:
                step.run(session)
            if self._abandoned:
                raise _Abandoned


class _Abandoned(BaseException):
    """Leaves the block of a side whose test is over."""


def _checked(made: AbstractContextManager[S]) -> AbstractContextManager[S]:
    if not isinstance(made, AbstractContextManager):
        raise ConfigurationError(
            f"interleave() was given something that makes {type(made).__name__!r}, which is no"
            " context manager with a Session in it: give it a sessionmaker, an Engine, or a"
            " function such as lambda: unit_of_work(SessionLocal)."
        )
    return made
