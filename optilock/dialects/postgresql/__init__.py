"""PostgreSQL.

:mod:`database` has its answers, :mod:`sets` its statement for many rows, :mod:`migrations`
the triggers of versions, and how a table that is alive gets a version,
:mod:`clock` the time at which a row is looked at, :mod:`messages` the statements of queues,
:mod:`floor` where a look for messages begins, and :mod:`connects` which failed connects may pass.
"""

from optilock.dialects.postgresql import clock as clock
from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
