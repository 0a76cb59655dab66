"""Tools for tests of concurrent code: step sessions by hand, count statements, private servers.

============  ======================================================================================
interleave    who does what, and in which order, is written in the test
steps         one step of a session, and whether it waits for a lock
counting      the statements that are sent
round_trips   how often a client waits for its server
servers       private servers: ``mariadbd`` and ``pgserver``
keeper        ends the server of a program that was killed
============  ======================================================================================
"""

from optilock.testing.counting import Sent, Statement, count_statements
from optilock.testing.interleave import Side, Step, interleave
from optilock.testing.round_trips import Trips, Wire, wire
from optilock.testing.steps import OutOfStep

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
