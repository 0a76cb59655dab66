"""A thread renews it while the block runs.

Each attempt has a thread of its own: one that waits for a server which does not answer is left
behind, and the holder is told in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine

from optilock.errors import OptilockError
from optilock.renewal.renewed import PATIENCE, Renewed

__all__ = ["renewing"]


@contextmanager
def renewing(held: Renewed, engine: Engine, name: str) -> Iterator[None]:
    """Renew it in the block, and end it with the block."""
    over = threading.Event()
    thread = threading.Thread(target=_renew, args=(held, engine, over), name=name, daemon=True)
    thread.start()
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
    finally:
        over.set()
    until = time.monotonic() + PATIENCE
    thread.join(PATIENCE)  # longer is waited for no server
    _end(held, engine, until)
    held.conclude(raised)
    if raised is not None:
        raise raised


def _renew(held: Renewed, engine: Engine, over: threading.Event) -> None:
    wait = held.first_wait
    while not over.wait(wait):
        attempt = _Attempt(lambda: held.renew_once(engine))
        while not attempt.is_done(max(held.left, 0.001)) and held.left > 0:
            pass  # a unit of the holder's has renewed it meanwhile
        try:
            wait = attempt.answer(held.silence)
        except OptilockError as error:
            if not over.is_set():
                held.lose(error)
            return


def _end(held: Renewed, engine: Engine, until: float) -> None:
    """The holder's own transaction, if it is still open, has the row: then it is not waited for."""
    soon = min(until, time.monotonic() + min(PATIENCE, held.length) / 4)
    while True:
        attempt = _Attempt(lambda: held.end_once(engine))
        if not attempt.is_done(max(until - time.monotonic(), 0.001)):
            held.not_ended("the server does not answer")
            return
        if attempt.answer(held.silence) or time.monotonic() >= soon:
            return
        time.sleep(0.05)


class _Attempt:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._done = threading.Event()
        self._answer: Any = None
        self._error: BaseException | None = None
        threading.Thread(
            target=self._run, args=(call,), name="optilock attempt", daemon=True
        ).start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._answer = call()
        except BaseException as error:
            self._error = error
        self._done.set()

    def is_done(self, seconds: float) -> bool:
        """Wait so long for it."""
        return self._done.wait(seconds)

    def answer(self, silence: Callable[[], OptilockError]) -> Any:
        """What it returned.

        Raises:
            OptilockError: what it raised; or ``silence``, if it is still waiting.
        """
        if not self._done.is_set():
            raise silence()
        if self._error is not None:
            raise self._error
        return self._answer
