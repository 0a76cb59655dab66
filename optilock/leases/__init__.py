"""Leases: a lock on a row, or on a name, that outlives transactions and ends by itself.

:mod:`condition` has the mixin, and the condition of each write; :mod:`columns` are the columns of
the mixin's table. :mod:`values` are leases, their states and the policy of a class.
:mod:`operations` acquire, renew, change, release and break leases of rows and of :mod:`names`.
:mod:`holders` lets a session write under a lease, or under one that a thread renews for the length
of a block (:mod:`threads`); :mod:`tasks` does that for async code (``optilock.asyncio.lease``).
Both stand on :mod:`renewal`, as the handles of shares do. :mod:`errors` are the errors.
"""

from optilock.leases.condition import Leasable
from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.leases.holders import Held, Under, lease, read, use
from optilock.leases.names import Name, Names, prepare
from optilock.leases.operations import acquire, break_, change, look, release, renew
from optilock.leases.values import ENDLESS, Lease, LeasePolicy, LeaseState

__all__ = [
    "ENDLESS",
    "Held",
    "Leasable",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LeasePolicy",
    "LeaseState",
    "Name",
    "Names",
    "Under",
    "acquire",
    "break_",
    "change",
    "lease",
    "look",
    "prepare",
    "read",
    "release",
    "renew",
    "use",
]
