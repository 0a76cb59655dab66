"""Share modes: who may have a name open beside whom, across processes and transactions.

::

    from optilock import shares

    with SessionLocal.begin() as session:
        handle = shares.open(session, "reports/2026", "RW", share="R", seconds=30)
    ...                                             # others read it meanwhile, and none writes
    with SessionLocal.begin() as session:
        shares.heartbeat(session, handle)           # before the 30 seconds are over
    with SessionLocal.begin() as session:
        shares.close(session, handle)

:mod:`locked` is a name and its handles under a lock, in the tables of
:mod:`optilock.tables.shares`, and has the rule. :mod:`operations` open, keep open, close and
delete; :mod:`held` is a handle whose heartbeats are sent for its owner, by :mod:`threads` or
:mod:`tasks`. A name may be a row; :mod:`guard` has the mixin of its class, and the conditions of
each write. :mod:`errors` are the errors. With an ``AsyncSession``:
``await optilock.asyncio.shares.open(session, ...)``.
"""

from optilock.shares.errors import (
    AccessDenied,
    DeletePending,
    HandleLost,
    NameNotFound,
    Open,
    ReadOnlyName,
    SharingViolation,
)
from optilock.shares.guard import Shared, Through, use
from optilock.shares.held import Opened
from optilock.shares.locked import Handle, Shares
from optilock.shares.operations import (
    State,
    check,
    close,
    create,
    delete,
    delete_pending,
    heartbeat,
    look,
    names,
    open,
    set_read_only,
)
from optilock.shares.threads import opened

__all__ = [
    "AccessDenied",
    "DeletePending",
    "Handle",
    "HandleLost",
    "NameNotFound",
    "Open",
    "Opened",
    "ReadOnlyName",
    "Shared",
    "Shares",
    "SharingViolation",
    "State",
    "Through",
    "check",
    "close",
    "create",
    "delete",
    "delete_pending",
    "heartbeat",
    "look",
    "names",
    "open",
    "opened",
    "set_read_only",
    "use",
]
