"""Share modes: which handles may be open on one name at a time, across processes and transactions.

::

    from optilock import shares

    with SessionLocal.begin() as session:
        handle = shares.open(session, "reports/2026", "RW", share="R", seconds=30)
    ...                                             # others can read it now, and none writes
    with SessionLocal.begin() as session:
        shares.heartbeat(session, handle)           # before the 30 seconds are over
    with SessionLocal.begin() as session:
        shares.close(session, handle)

:mod:`values` has the rule, handles and limits. :mod:`names` is a name with its handles under a
lock, in the tables of :mod:`optilock.tables.names`. :mod:`operations` open, keep open, close and
delete. A name may be a row; :mod:`guard` has the mixin of its class, the conditions of each write,
and handles that a thread keeps open. :mod:`errors` are the errors. With an ``AsyncSession``:
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
from optilock.shares.guard import Opened, Shared, Through, opened, use
from optilock.shares.operations import (
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
from optilock.shares.values import Handle, Shares, State

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
