"""Leases: a lock on a row, or on a name, that outlives transactions and ends by itself.

:mod:`leasable` is the mixin, :mod:`policy` what a class says of its leases, and :mod:`columns` what
the table has for them. :mod:`condition` is asked by every write. :mod:`operations` acquire, renew,
change, release and break leases of rows and of :mod:`names`; :mod:`values` are what
the holder gets, and what everybody may know. :mod:`under` lets a session write under a lease.
:mod:`held` is a lease that is renewed for its holder, by :mod:`threads`, or by :mod:`tasks` for
async code (``optilock.asyncio.lease``). :mod:`errors` are what others get.
"""

from optilock.leases.errors import LeaseHeld, LeaseLost
from optilock.leases.held import Held
from optilock.leases.leasable import Leasable
from optilock.leases.names import Name, Names, prepare
from optilock.leases.operations import acquire, break_, change, look, release, renew
from optilock.leases.policy import ENDLESS, LeasePolicy
from optilock.leases.threads import lease
from optilock.leases.under import Under, read, use
from optilock.leases.values import Lease, LeaseState

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
