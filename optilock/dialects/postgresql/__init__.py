"""PostgreSQL.

:mod:`database` has its answers, :mod:`sets` its statement for many rows, :mod:`few_rows` what is
sent for a few. :mod:`migrations` has the triggers of versions, and how a table that is alive gets a
version, :mod:`clock` the time at which a row is looked at, :mod:`messages` the statements of
queues, :mod:`floor` where a look for messages begins, and :mod:`connects` which failed connects may
pass. :mod:`patience` lets writes wait only briefly, and :mod:`described` asks psycopg once for the
columns of a query. :mod:`catalogue` has what its tables have, and
:mod:`weak` what makes versions weaker there.

A pipelined unit of work sends BEGIN and COMMIT along with other statements: :mod:`cursors` of
psycopg ask the :mod:`line` of their connection what goes with a statement, :mod:`last_writes` go
with COMMIT, and :mod:`raising` has the statements that let the server skip it.
"""

from optilock.dialects.postgresql import clock as clock
from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
