"""``async with lease(...)``: a task renews the lease while the block runs.

Once the lease is lost, the task that runs the block is cancelled at its next ``await``, as
``asyncio.timeout`` does it, and the block ends with ``LeaseLost``. With ``on_lost=`` it is not
cancelled: the function is called in its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import greenlet_spawn

from optilock.errors import ConfigurationError
from optilock.leases.errors import LeaseLost
from optilock.leases.held import PATIENCE, Held, OnLost, require_end, require_own_connections
from optilock.leases.names import place_of
from optilock.leases.operations import acquire
from optilock.unit.sessions import is_async, make_async_session

__all__ = ["lease"]


@asynccontextmanager
async def lease(
    sessions: Any,
    of: Any,
    duration: Any = 30,
    *,
    if_match: Any = None,
    on_lost: OnLost | None = None,
    on: Collection[type[Any]] | None = None,
) -> AsyncIterator[Held]:
    """:func:`optilock.leases.lease` for async sessions: same arguments, rules and errors.

    ``sessions`` is an ``async_sessionmaker``, an ``async_scoped_session`` or an ``AsyncEngine``.
    """
    if not is_async(sessions):
        raise ConfigurationError(
            "optilock.asyncio.lease() got a factory of sync sessions: write"
            " `with leases.lease(...)`."
        )
    require_end(duration)
    place, began = place_of(of, "lease"), time.monotonic()
    async with make_async_session(sessions) as session, session.begin():
        engine: Engine = await session.run_sync(lambda sync: place.connection(sync).engine)
        require_own_connections(engine)
        taken = await session.run_sync(acquire, of, duration, if_match=if_match)
    held = Held(place, taken, duration, on_lost, on, began)
    holder, over = asyncio.current_task(), asyncio.Event()
    assert holder is not None
    told = holder.cancel if on_lost is None else _nothing
    renewing = asyncio.ensure_future(_renew(held, engine, over, told))
    raised: BaseException | None = None
    try:
        yield held
    except BaseException as error:
        raised = error
    over.set()
    await _uninterrupted(_stop(held, engine, renewing))
    if isinstance(raised, asyncio.CancelledError) and held.lost is not None and on_lost is None:
        raised = raised if holder.uncancel() else None  # it was we who told the holder so
    held.conclude(raised)
    if raised is not None:
        raise raised


def _nothing() -> None:
    """``on_lost`` has been called."""


async def _renew(
    held: Held, engine: Engine, over: asyncio.Event, told: Callable[[], object]
) -> None:
    wait = held.first_wait()
    while not await _set_within(over, wait):
        try:
            wait = await greenlet_spawn(held.renew_once, engine)
        except LeaseLost:
            if not over.is_set():
                told()
            return


async def _set_within(over: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(over.wait(), seconds)
    except TimeoutError:
        return False


async def _stop(held: Held, engine: Engine, renewing: asyncio.Task[None]) -> None:
    await asyncio.wait({renewing}, timeout=PATIENCE)  # longer is waited for no server
    renewing.cancel()
    until = time.monotonic() + min(PATIENCE, held.length) / 4
    while not await greenlet_spawn(held.release_once, engine) and time.monotonic() < until:
        await asyncio.sleep(0.05)


async def _uninterrupted(work: Any) -> None:
    """Wait for it also while we are cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
