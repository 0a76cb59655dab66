"""A session that is stepped by hand, and the thread it lives in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.testing.steps import PATIENCE, OutOfStep, Step
from optilock.testing.waiting import Watcher

__all__ = ["Side"]

S = TypeVar("S", bound=Session)
R = TypeVar("R")


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
