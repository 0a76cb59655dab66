"""Tools for tests of concurrent code: step sessions by hand, count statements, private servers."""

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
