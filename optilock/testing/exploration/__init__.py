"""Every order of two or three units that can differ, run on the real database and judged.

``tests`` call :func:`assert_serializable`; ``docs/how-to/test/explore.md`` is the manual.

================  ==================================================================================
calls             ``explore``, ``assert_serializable``, ``replay``
units             the functions that are explored
stage             the database: rows before an order, rows after it, waits
explorer          serial orders, and the judgement of all others
search            which orders are run, depth first
dependence        which two steps could differ if they changed places
touches           the rows that a statement names
turns             threads that run one at a time
stops             where units stop, by listeners to the engine
judgement         whether a serial order leaves the same, and the anomaly's name
script            an order as columns of statements
statement_texts   a statement as a person reads it
values            values as texts that are equal where the values are
report            the result, and the error
================  ==================================================================================
"""

from optilock.testing.exploration.calls import assert_serializable, explore, replay
from optilock.testing.exploration.judgement import Outcome
from optilock.testing.exploration.report import Exploration, Failure, NotSerializable
from optilock.testing.exploration.search import NotDeterministic

__all__ = [
    "Exploration",
    "Failure",
    "NotDeterministic",
    "NotSerializable",
    "Outcome",
    "assert_serializable",
    "explore",
    "replay",
]
