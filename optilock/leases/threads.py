"""``with lease(...)``: a thread renews the lease while the block runs.

::

    with lease(sessions, (Page, 7), 30) as held:
        ...                                  # minutes of work
        held.check()                         # before what cannot be taken back
        with UnitOfWork(sessions, parts=[held]) as session:
            session.get_one(Page, 7).text = "..."

The lease is released when the block is left, by whatever way. Once it is lost, ``on_lost`` is
called at once, by the thread; ``held.check()`` raises, and so does the end of the block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from optilock.errors import ConfigurationError
from optilock.leases.held import Held, held_from
from optilock.renewal.renewed import OnLost
from optilock.renewal.threads import renewing
from optilock.unit.sessions import is_async, make_session

__all__ = ["lease"]


@contextmanager
def lease(
    sessions: Any,
    of: Any,
    duration: Any = 30,
    *,
    if_match: Any = None,
    on_lost: OnLost | None = None,
    on: Collection[type[Any]] | None = None,
) -> Iterator[Held]:
    """Be the holder for the length of the block.

    Args:
        sessions: a ``sessionmaker``, a ``scoped_session`` or an ``Engine``.
        of: a stored object, ``(Page, 7)``, or a ``Name``.
        duration: seconds after which the lease ends if this process dies.
        if_match: as for ``acquire``.
        on_lost: called once, in the thread that renews, when the lease is lost.
        on: of the lease of a name: the classes whose rows need it.

    Raises:
        LeaseHeld, PreconditionFailed, NotFound: as ``acquire``; the block is not entered.
        LeaseLost: at the end of the block: the lease was lost meanwhile.
    """
    if is_async(sessions):
        raise ConfigurationError(
            "leases.lease() got a factory of async sessions: write"
            " `async with optilock.asyncio.lease(...)`."
        )
    with make_session(sessions) as session, session.begin():
        held, engine = held_from(session, of, duration, if_match, on_lost, on)
    with renewing(held, engine, "optilock lease"):
        yield held
