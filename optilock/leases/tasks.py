"""Leases and handles that a task renews while the block of a coroutine runs.

When one is lost, the task that runs the block is cancelled at its next ``await``, as
``asyncio.timeout`` does it, and the block ends with the error that it is lost. With ``on_lost=`` it
is not cancelled: the function is called instead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import await_only, greenlet_spawn

from optilock.errors import ConfigurationError
from optilock.leases.renewal import PATIENCE, Renewal, RenewedPart
from optilock.unit.cancellation import wait_until_done
from optilock.unit.sessions import is_async, make_async_session

P = ParamSpec("P")
H = TypeVar("H", bound=RenewedPart[Any])

_log = logging.getLogger("optilock")


def held_in_task(
    call: str,
    block: Callable[P, AbstractContextManager[H]],
    take: Callable[..., tuple[H, Engine]],
) -> Callable[P, AbstractAsyncContextManager[H]]:
    """Return ``block`` for async sessions: same arguments, rules and errors.

    Its ``sessions`` is an ``async_sessionmaker``, an ``async_scoped_session`` or an
    ``AsyncEngine``.
    """
    signature = inspect.signature(block)

    @asynccontextmanager
    async def held_block(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[H]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        sessions = bound.arguments.pop("sessions")
        if not is_async(sessions):
            raise ConfigurationError(
                f"{call}() of optilock.asyncio got a factory of sync sessions: write"
                f" `with {call}(...)`."
            )
        held, engine, late = await _taken(make_async_session(sessions), take, bound.arguments)
        async with _renewing(held, engine):
            if late is not None:
                raise late
            yield held

    held_block.__name__, held_block.__doc__ = call.partition(".")[2], block.__doc__
    held_block.__signature__ = signature  # type: ignore[attr-defined]
    return held_block


async def _taken(
    session: AsyncSession, take: Callable[..., tuple[H, Engine]], arguments: dict[str, Any]
) -> tuple[H, Engine, asyncio.CancelledError | None]:
    """Take it and commit; return it, its engine, and a cancellation that came in COMMIT.

    After such a cancellation it is to be ended: nothing else would do so before its time is over.
    """
    try:
        held, engine = await session.run_sync(take, **arguments)
    except BaseException:
        late = await wait_until_done(asyncio.ensure_future(_roll_back(session)))
        if late is not None:
            raise late from None
        raise
    committing = asyncio.ensure_future(_commit(session))
    late = await wait_until_done(committing)
    failure = committing.exception()
    if failure is None:
        return held, engine, late
    if late is not None:
        raise late from failure
    raise failure


async def _commit(session: AsyncSession) -> None:
    try:
        await session.commit()
    except BaseException:
        await _roll_back(session)
        raise
    await session.close()


async def _roll_back(session: AsyncSession) -> None:
    """Roll back and close; a rollback that fails never hides the first error."""
    try:
        await session.rollback()
    except Exception:
        _log.warning("rolling back failed; the connection is thrown away", exc_info=True)
        await session.invalidate()
    await session.close()


class _Holder:
    """The task that runs the block."""

    def __init__(self, held: RenewedPart[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancels, self.cancelled = task, held.on_lost is None, False

    def cancel(self) -> None:
        if self._cancels:
            self.cancelled = self._task.cancel()

    def leaves_with(
        self, raised: BaseException | None, late: asyncio.CancelledError | None
    ) -> BaseException | None:
        """Return the error that leaves the block, without our own cancellation.

        ``late`` came after the end of the block.
        """
        by_us = self.cancelled and not self._task.uncancel()
        if not by_us:
            return late or raised
        return None if isinstance(raised, asyncio.CancelledError) else raised


@asynccontextmanager
async def _renewing(held: RenewedPart[Any], engine: Engine) -> AsyncIterator[None]:
    holder, over = _Holder(held), asyncio.Event()
    held.pause = lambda seconds: await_only(asyncio.sleep(seconds))
    renewal = Renewal(
        held,
        engine,
        attempt=lambda call: _TaskAttempt(greenlet_spawn(call)),
        over=over,
        over_within=lambda seconds: _is_set_within(over, seconds),
        pause=asyncio.sleep,
    )
    renewing = _TaskAttempt(renewal.renew(holder.cancel))
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
    finally:
        over.set()
    end = asyncio.ensure_future(_end(renewal, renewing))
    late = await wait_until_done(end)
    end.result()
    raised = holder.leaves_with(raised, late)
    held.conclude(raised)
    if raised is not None:
        raise raised


async def _end(renewal: Renewal, renewing: _TaskAttempt) -> None:
    until = time.monotonic() + PATIENCE
    if not await renewing.is_done(PATIENCE):  # no longer for a server that does not answer
        renewing.leave()
    await renewal.end(until)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False


class _TaskAttempt:
    """Work in a task of its own."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(work)

    async def is_done(self, seconds: float) -> bool:
        try:
            await asyncio.wait({self._task}, timeout=max(seconds, 0.001))
        except asyncio.CancelledError:
            self.leave()
            raise
        return self._task.done()

    def result(self) -> Any:
        return self._task.result()

    def leave(self) -> None:
        """Cancel it, and ignore its result: it waits for a server that does not answer."""
        self._task.add_done_callback(lambda one: one.cancelled() or one.exception())
        self._task.cancel()
