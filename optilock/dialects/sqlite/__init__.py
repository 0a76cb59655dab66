"""SQLite.

:mod:`database` has its answers, :mod:`rows` its statement for many rows, :mod:`migrations`
the triggers of versions, and how a table that is alive gets a version,
:mod:`clock` the time at which a row is looked at, :mod:`messages` the statements of queues.
:mod:`catalogue` what its tables have.
"""

from optilock.dialects.sqlite import clock as clock
from optilock.dialects.sqlite.database import SQLite as SQLite
