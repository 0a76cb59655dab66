"""A task renews it while the block of a coroutine runs.

Once it is lost, the task that runs the block is cancelled at its next ``await``, as
``asyncio.timeout`` does it, and the block ends with the error that says so. With ``on_lost=`` it is
not cancelled: the function is called in its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import await_only, greenlet_spawn

from optilock.errors import OptilockError
from optilock.renewal.renewed import PATIENCE, Renewed

__all__ = ["renewing"]


class _Holder:
    """The task that runs the block."""

    def __init__(self, held: Renewed) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancels, self.cancelled = task, held.on_lost is None, False

    def tell(self) -> None:
        if self._cancels:
            self.cancelled = self._task.cancel()

    def leaves_with(
        self, raised: BaseException | None, late: asyncio.CancelledError | None
    ) -> BaseException | None:
        """What leaves the block: not the cancellation by which we said that it is lost.

        ``late`` came after the block's own end.
        """
        by_us = self.cancelled and not self._task.uncancel()
        if not by_us:
            return late or raised
        return None if isinstance(raised, asyncio.CancelledError) else raised


@asynccontextmanager
async def renewing(held: Renewed, engine: Engine) -> AsyncIterator[None]:
    """Renew it in the block, and end it with the block."""
    holder, over = _Holder(held), asyncio.Event()
    held.pause = lambda seconds: await_only(asyncio.sleep(seconds))
    task = asyncio.ensure_future(_renew(held, engine, over, holder.tell))
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
    finally:
        over.set()
    late = await _uninterrupted(_end(held, engine, task))
    raised = holder.leaves_with(raised, late)
    held.conclude(raised)
    if raised is not None:
        raise raised


async def _renew(
    held: Renewed, engine: Engine, over: asyncio.Event, told: Callable[[], object]
) -> None:
    wait = held.first_wait
    while not await _set_within(over, wait):
        attempt = asyncio.ensure_future(greenlet_spawn(held.renew_once, engine))
        while not await _done(attempt, held.left) and held.left > 0:
            pass  # a unit of the holder's has renewed it meanwhile
        try:
            if not attempt.done():
                _leave_behind(attempt)
                raise held.silence()
            wait = attempt.result()
        except OptilockError as error:
            if not over.is_set():
                held.lose(error)
                told()
            return
        except asyncio.CancelledError:
            _leave_behind(attempt)
            raise


async def _set_within(over: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(over.wait(), seconds)
    except TimeoutError:
        return False


async def _done(task: asyncio.Future[Any], seconds: float) -> bool:
    await asyncio.wait({task}, timeout=max(seconds, 0.001))
    return task.done()


def _leave_behind(attempt: asyncio.Future[Any]) -> None:
    """It waits for a server which does not answer; nobody asks what becomes of it."""
    attempt.add_done_callback(lambda one: one.cancelled() or one.exception())
    attempt.cancel()


async def _end(held: Renewed, engine: Engine, task: asyncio.Task[None]) -> None:
    until = time.monotonic() + PATIENCE
    if not await _done(task, PATIENCE):  # longer is waited for no server
        _leave_behind(task)
    soon = min(until, time.monotonic() + min(PATIENCE, held.length) / 4)
    while True:
        attempt = asyncio.ensure_future(greenlet_spawn(held.end_once, engine))
        if not await _done(attempt, until - time.monotonic()):
            _leave_behind(attempt)
            held.not_ended("the server does not answer")
            return
        if attempt.result() or time.monotonic() >= soon:
            return
        await asyncio.sleep(0.05)


async def _uninterrupted(work: Any) -> asyncio.CancelledError | None:
    """Wait for it also while we are cancelled, and return that."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    return cancelled
