"""Leases and handles that a thread renews while a block runs.

Each attempt has a thread of its own. If the process can start no more threads, the one that counts
the time makes the attempt itself: the lease goes on, but while a server does not answer, its holder
learns of a loss from ``held.check()`` alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Engine

from optilock._coroutines import run_to_end
from optilock.errors import ConfigurationError
from optilock.leases.renewal import PATIENCE, Renewal, RenewedPart
from optilock.unit.sessions import is_async, make_session

H = TypeVar("H", bound=RenewedPart[Any])


@contextmanager
def held_in_thread(
    call: str, sessions: Any, take: Callable[..., tuple[H, Engine]], *args: Any, **options: Any
) -> Iterator[H]:
    """Hold ``take(session, ...)`` in the block; a thread renews it.

    Raises:
        ConfigurationError: the factory makes async sessions.
    """
    if is_async(sessions):
        raise ConfigurationError(
            f"{call}() got a factory of async sessions: write"
            f" `async with optilock.asyncio.{call.removeprefix('leases.')}(...)`."
        )
    with make_session(sessions) as session, session.begin():
        held, engine = take(session, *args, **options)
    over = threading.Event()
    renewal = Renewal(
        held,
        engine,
        attempt=_Attempt,
        over=over,
        over_within=over.wait,
        pause=time.sleep,
    )
    thread = threading.Thread(
        target=lambda: run_to_end(renewal.renew()), name=f"optilock {held.kind}", daemon=True
    )
    raised: BaseException | None = None
    try:
        thread.start()
        yield held
    except BaseException as error:
        raised = error
    finally:
        over.set()
    until = time.monotonic() + PATIENCE
    if thread.ident is not None:
        thread.join(PATIENCE)  # a server that does not answer is not waited for any longer
    run_to_end(renewal.end(until))
    held.conclude(raised)
    if raised is not None:
        raise raised


class _Attempt:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._done = threading.Event()
        self._answer: Any = None
        self._error: BaseException | None = None
        thread = threading.Thread(target=self._run, name="optilock attempt", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there is no thread left, or the interpreter ends
            self._run()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:
            self._error = error
        self._done.set()

    def is_done(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer

    def leave(self) -> None:
        """The thread ends when the server answers."""
