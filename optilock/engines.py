"""An engine of either kind, where what is to be done is written once, for the sync one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Engine

from optilock.errors import ConfigurationError, described

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["on_engine"]

R = TypeVar("R")


def on_engine(engine: Engine | AsyncEngine, work: Callable[[Engine], R], *, call: str) -> R:
    """Do ``work``; with an async engine in an event loop of its own.

    The pool of an async engine is emptied afterwards: its connections belong to that loop.

    Raises:
        ConfigurationError: an async engine, and an event loop runs here already; or no engine at
            all. ``call`` is the function that got it.
    """
    if isinstance(engine, Engine):
        return work(engine)
    if not isinstance(getattr(engine, "sync_engine", None), Engine):
        raise ConfigurationError(
            f"{call}() takes an Engine or an AsyncEngine, not {described(engine)}: write"
            " create_engine(url)."
        )
    if _loop_runs():
        raise ConfigurationError(
            f"{call}() was given an AsyncEngine inside of a running event loop, and cannot wait"
            " for it there: open a connection, and hand over the engine that it has inside of"
            f" run_sync: await connection.run_sync(lambda c: {call}(..., c.engine))."
        )
    return asyncio.run(_in_a_loop(engine, work))


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _in_a_loop(engine: AsyncEngine, work: Callable[[Engine], R]) -> R:
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda sync: work(sync.engine))
    finally:
        await engine.dispose()
