"""Leases: a lock on a row, or on a name, that outlives transactions and ends by itself.

==========  ========================================================================================
condition   the mixin, and the condition of each write
columns     the columns of the mixin's table
values      leases, their states and the policy of a class
operations  acquire, renew, change, release and break leases
names       names, and the places of leases of rows and names
holders     a session that writes under a lease
renewal     renewal while a block runs, for leases and for handles of shares
threads     renewal by a thread
tasks       renewal by a task, for async code (``optilock.asyncio.lease``)
errors      the errors
==========  ========================================================================================
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
