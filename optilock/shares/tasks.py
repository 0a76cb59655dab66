"""``async with opened(...)``: a task sends the heartbeats of a handle while the block runs.

Once the handle is lost, the task that runs the block is cancelled at its next ``await``, and the
block ends with ``HandleLost``. With ``on_lost=`` that function is called in place of that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from optilock.errors import ConfigurationError
from optilock.renewal.renewed import OnLost
from optilock.renewal.tasks import renewing
from optilock.shares.held import Opened, opened_from
from optilock.shares.locked import USUAL, Shares
from optilock.unit.sessions import is_async, make_async_session

__all__ = ["opened"]


@asynccontextmanager
async def opened(
    sessions: Any,
    name: Any,
    access: str,
    share: str = "",
    *,
    seconds: Any = None,
    owner: str | None = None,
    create: bool = True,
    delete_on_close: bool = False,
    within: Shares = USUAL,
    on_lost: OnLost | None = None,
) -> AsyncIterator[Opened]:
    """:func:`optilock.shares.opened` for async sessions: same arguments, rules and errors.

    ``sessions`` is an ``async_sessionmaker``, an ``async_scoped_session`` or an ``AsyncEngine``.
    """
    if not is_async(sessions):
        raise ConfigurationError(
            "optilock.asyncio.shares.opened() got a factory of sync sessions: write"
            " `with shares.opened(...)`."
        )
    options: Any = {"owner": owner, "create": create, "delete_on_close": delete_on_close}
    options |= {"seconds": seconds, "within": within}
    async with make_async_session(sessions) as session, session.begin():
        held, engine = await session.run_sync(opened_from, name, access, share, on_lost, **options)
    async with renewing(held, engine):
        yield held
