"""Step sessions by hand: who does what, and in which order, is written in the test.

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

Every side has a session and a thread of its own. ``do`` runs a step there, waits for it, and gives
its value or raises its error. A step that has to wait for a lock is ``start``\\ ed, and the others
go on::

            alice.do(lambda session: session.flush())       # has the row's lock
            step = bob.start(lambda session: session.flush())
            step.blocked()                                  # bob waits for it
            alice.commit()
            step.result()                                   # bob's value, or his error

What makes the sessions is a ``sessionmaker``, watched or not, an ``Engine``, or any function that
gives a context manager with a session in it; ``lambda: UnitOfWork(SessionLocal)`` steps units of
work, and ``leave()`` is then the end of the block, where the unit commits.

Nothing sleeps for a result. ``blocked()`` asks PostgreSQL and MariaDB whether the connection waits
for a lock, over one more connection of the same pool. SQLite has nobody to ask: there a step that
has begun a transaction and has not ended after ``GRACE`` seconds counts as blocked, so give such
engines a longer ``timeout`` in their ``connect_args``.

At the end of the block every session is rolled back and closed, those that wait for others last. An
error of a step whose ``result()`` nobody asked for comes out there. Objects may be read and changed
between the steps; what loads from the database belongs in a step. In case of doubt about who is
stuck: no wait is longer than ``PATIENCE`` seconds unless ``timeout=`` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.testing.steps import GRACE, PATIENCE, OutOfStep, Step, Watcher

__all__ = ["GRACE", "PATIENCE", "OutOfStep", "Side", "Step", "interleave"]


S = TypeVar("S", bound=Session)
R = TypeVar("R")


@contextmanager
def interleave(
    sessions: Callable[[], AbstractContextManager[S]] | Engine, *names: str
) -> Iterator[tuple[Side[S], ...]]:
    """One :class:`Side` for each name, with a session of its own.

    Raises ``ConfigurationError`` without names, when two are alike, and for what makes no sessions.
    """
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"interleave() got the names {names!r}: name every side once, for example"
            ' interleave(SessionLocal, "alice", "bob").'
        )
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
            f"{', '.join(stuck)} did not end within {PATIENCE:g} s: a step waits for a lock that"
            " somebody outside of interleave() holds."
        )
    for error in (error for side in sides for error in side.unseen_errors()):
        raise error


def _factory(sessions: Any) -> Callable[[], AbstractContextManager[Any]]:
    if isinstance(sessions, Engine):
        return lambda: Session(sessions)
    if not callable(sessions):
        raise ConfigurationError(
            f"interleave() got {sessions!r}, which makes no sessions: give it a sessionmaker, an"
            " Engine, or a function such as lambda: UnitOfWork(SessionLocal)."
        )
    return cast("Callable[[], AbstractContextManager[Any]]", sessions)


def _end(sides: list[Side[S]]) -> None:
    """Roll back and close: who waits for a lock gets it from those who end before."""
    for side in sides:
        side.abandon()
    for side in sides:
        side.has_left(PATIENCE)


class Side(Generic[S]):
    """One of those who work at the same time."""

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
        """Run ``step`` with the session, wait for it, and give its value; its error is raised.

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
        """Write what the session holds."""
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
        """Wait at most ``timeout`` seconds for the end of the block; has it come?"""
        try:
            self._left.exception(timeout)
        except TimeoutError:
            return False
        return True

    def unseen_errors(self) -> list[BaseException]:
        """The errors that nobody has asked for: of steps, and of an end that was not asked for."""
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
            " function such as lambda: UnitOfWork(SessionLocal)."
        )
    return made
