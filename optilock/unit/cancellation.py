"""What an async unit carries to its end while its task is cancelled: COMMIT and ROLLBACK."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sqlalchemy.util import greenlet_spawn

from optilock.unit.next_attempt import NextAttempt


async def drop_transaction(next_attempt: NextAttempt) -> None:
    """Roll back the transaction that was kept, because no attempt follows."""
    await to_the_end(greenlet_spawn(next_attempt.drop), "rolled back")


async def to_the_end(work: Coroutine[Any, Any, None], outcome: str) -> None:
    """Wait for ``work``, and pass on a cancellation only after it."""
    task = asyncio.ensure_future(work)
    cancelled = await wait_until_done(task)
    if cancelled is None:
        task.result()
        return
    failure = task.exception()
    if failure is None:
        cancelled.add_note(f"optilock: cancelled at its end; the unit of work was {outcome}")
        raise cancelled
    cancelled.add_note(f"optilock: cancelled at its end; the unit of work failed: {failure}")
    raise cancelled from failure


async def wait_until_done(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for the task even while we are cancelled; return the cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
