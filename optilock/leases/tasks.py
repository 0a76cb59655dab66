"""``async with lease(...)``: a task renews the lease while the block runs.

Once the lease is lost, the task that runs the block is cancelled at its next ``await``, as
``asyncio.timeout`` does it, and the block ends with ``LeaseLost``. With ``on_lost=`` it is not
cancelled: the function is called in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from optilock.errors import ConfigurationError
from optilock.leases.held import Held, held_from
from optilock.renewal.renewed import OnLost
from optilock.renewal.tasks import renewing
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
    async with make_async_session(sessions) as session, session.begin():
        held, engine = await session.run_sync(held_from, of, duration, if_match, on_lost, on)
    async with renewing(held, engine):
        yield held
