"""Tools for tests of concurrent code: step sessions by hand, count statements.

===========  ======================================================================================
interleave   sessions that are stepped by hand, in the order that is written in the test
counting     the statements that are sent, and how often a client waits for its server
===========  ======================================================================================

Private database servers for tests are in :mod:`optilock_apps.servers`.
"""

from optilock.testing.counting import Sent, Statement, Trips, Wire, count_statements, wire
from optilock.testing.interleave import OutOfStep, Side, Step, interleave

__all__ = [
    "OutOfStep",
    "Sent",
    "Side",
    "Statement",
    "Step",
    "Trips",
    "Wire",
    "count_statements",
    "interleave",
    "wire",
]
