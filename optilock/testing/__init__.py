"""Tools for tests of concurrent code: step sessions by hand, count statements, lose connections.

===================  ===============================================================================
interleave           sessions that are stepped by hand, in the order that is written in the test
async_interleave     the same for async sessions: ``interleave_async``
counting             the statements that are sent, and how often a client waits for its server
faults               lost COMMITs, cut lines, conflicts and deadlocks, where the test wants them
by_way_of            how an engine's connections are led through this process
strict_sessions      every watched session refuses rows without a version
lines                a connection to a server that can be cut, held and answered
sqlite_lines         the same for a file of SQLite
exploration          every order of two or three units that can differ: ``explore``
lost_updates         two runs of one piece of work at once, and whether a number has moved by both
other_writers        what the other transaction of a conflict writes
protocols            the bytes of PostgreSQL and of MariaDB, split into messages and answers
sessions_under_test  the sessions of an application, as the fixtures for pytest use them
sql_texts            whether a statement writes, or ends a transaction
===================  ===============================================================================

The pytest fixtures are in :mod:`optilock.pytest_plugin`. Private database servers for tests are in
:mod:`optilock_apps.servers`.
"""

from typing import TYPE_CHECKING, Any

from optilock._coroutines import load_of_asyncio
from optilock.testing.counting import Sent, Statement, Trips, Wire, count_statements, wire
from optilock.testing.faults import Fault, FaultNotMet, Faults
from optilock.testing.interleave import OutOfStep, Side, Step, interleave

if TYPE_CHECKING:
    from optilock.testing.async_interleave import AsyncSide, AsyncStep, interleave_async
    from optilock.testing.exploration import (
        Exploration,
        Failure,
        NotDeterministic,
        NotSerializable,
        Outcome,
        assert_serializable,
        explore,
        replay,
    )

__all__ = [
    "AsyncSide",
    "AsyncStep",
    "Exploration",
    "Failure",
    "Fault",
    "FaultNotMet",
    "Faults",
    "NotDeterministic",
    "NotSerializable",
    "OutOfStep",
    "Outcome",
    "Sent",
    "Side",
    "Statement",
    "Step",
    "Trips",
    "Wire",
    "assert_serializable",
    "count_statements",
    "explore",
    "interleave",
    "interleave_async",
    "replay",
    "wire",
]


#: Loaded when they are first used: the first one needs greenlet.
_HOMES = {
    "async_interleave": ("AsyncSide", "AsyncStep", "interleave_async"),
    "exploration": (
        "Exploration",
        "Failure",
        "NotDeterministic",
        "NotSerializable",
        "Outcome",
        "assert_serializable",
        "explore",
        "replay",
    ),
}


def __getattr__(name: str) -> Any:
    """Load a name of a module that is not always needed."""
    for module, names in _HOMES.items():
        if name in names:
            return load_of_asyncio(f"optilock.testing.{module}", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
