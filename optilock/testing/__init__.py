"""Tools for tests of concurrent code: step sessions by hand, count statements, lose connections.

=============  =====================================================================================
interleave     sessions that are stepped by hand, in the order that is written in the test
async_interleave  the same for async sessions: ``interleave_async``
counting       the statements that are sent, and how often a client waits for its server
faults         lost COMMITs, cut lines, conflicts and deadlocks, where the test wants them
fixtures       the pytest fixture ``optilock_faults``
by_way_of      how an engine's connections are led through this process
lines          a connection to a server that can be cut, held and answered
sqlite_lines   the same for a file of SQLite
other_writers  what the other transaction of a conflict writes
protocols      the bytes of PostgreSQL and of MariaDB, split into messages and answers
sql_texts      whether a statement writes, or ends a transaction
=============  =====================================================================================

Private database servers for tests are in :mod:`optilock_apps.servers`.
"""

from typing import TYPE_CHECKING, Any

from optilock.testing.counting import Sent, Statement, Trips, Wire, count_statements, wire
from optilock.testing.faults import Fault, FaultNotMet, Faults
from optilock.testing.interleave import OutOfStep, Side, Step, interleave

if TYPE_CHECKING:
    from optilock.testing.async_interleave import AsyncSide, AsyncStep, interleave_async

__all__ = [
    "AsyncSide",
    "AsyncStep",
    "Fault",
    "FaultNotMet",
    "Faults",
    "OutOfStep",
    "Sent",
    "Side",
    "Statement",
    "Step",
    "Trips",
    "Wire",
    "count_statements",
    "interleave",
    "interleave_async",
    "wire",
]


def __getattr__(name: str) -> Any:
    """Load SQLAlchemy's asyncio half when it is asked for: it needs greenlet."""
    if name not in ("AsyncSide", "AsyncStep", "interleave_async"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from optilock.testing import async_interleave

    return getattr(async_interleave, name)
