"""``with opened(...)``: a thread sends the heartbeats of a handle while the block runs.

::

    with opened(sessions, (Page, 7), "RW", share="R", seconds=30) as held:
        ...                                  # minutes of work
        held.check()                         # before what cannot be taken back
        with UnitOfWork(sessions, parts=[held]) as session:
            session.get_one(Page, 7).text = "..."

The handle is closed when the block is left, by whatever way. Once it is lost, ``on_lost`` is called
at once, by the thread; ``held.check()`` raises, and so does the end of the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optilock.errors import ConfigurationError
from optilock.renewal.renewed import OnLost
from optilock.renewal.threads import renewing
from optilock.shares.held import Opened, opened_from
from optilock.shares.locked import USUAL, Shares
from optilock.unit.sessions import is_async, make_session

__all__ = ["opened"]


@contextmanager
def opened(
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
) -> Iterator[Opened]:
    """Have a name, or a row, open for the length of the block.

    Args:
        sessions: a ``sessionmaker``, a ``scoped_session`` or an ``Engine``.
        name, access, share, owner, create, delete_on_close, within: as for
            :func:`optilock.shares.open`.
        seconds: after which the handle is closed if this process dies.
        on_lost: called once, in the thread that sends heartbeats, when the handle is lost.

    Raises:
        SharingViolation, DeletePending, NameNotFound, AccessDenied, ReadOnlyName,
            ConfigurationError: as ``open``; the block is not entered.
        HandleLost: at the end of the block: the handle was lost meanwhile.
    """
    if is_async(sessions):
        raise ConfigurationError(
            "shares.opened() got a factory of async sessions: write"
            " `async with optilock.asyncio.shares.opened(...)`."
        )
    options: Any = {"owner": owner, "create": create, "delete_on_close": delete_on_close}
    options |= {"seconds": seconds, "within": within}
    with make_session(sessions) as session, session.begin():
        held, engine = opened_from(session, name, access, share, on_lost, **options)
    with renewing(held, engine, "optilock handle"):
        yield held
