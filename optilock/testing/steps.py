"""One step of a session that is stepped by hand: its value, its error, or that it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from sqlalchemy.orm import Session

from optilock.errors import OptilockError
from optilock.testing.waiting import Watcher

__all__ = ["GRACE", "PATIENCE", "OutOfStep", "Step"]

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
