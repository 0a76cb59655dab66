"""PostgreSQL.

:mod:`database` has its answers, and :mod:`causes` those about errors. :mod:`rows` has the statement
for many rows, in three variants: plain, waiting only briefly for locks, and raising an error for a
row that does not match; :mod:`arrays` are the form of its values.
:mod:`migrations` has the triggers of versions, how a table in use gets a version, the catalogue and
the clock. :mod:`queue_sql` has the statements of queues, and where their index scan begins,
:mod:`commit_tokens` those of units that are stored once. :mod:`weak_settings` finds what makes
versions weaker.

A pipelined unit of work sends BEGIN and COMMIT along with other statements. The :mod:`cursors` of
psycopg ask the :mod:`line` of their connection which statements are sent together, and
:mod:`last_writes` are sent with COMMIT.
:mod:`scope_rows` moves scopes in the trip of COMMIT, and :mod:`scope_triggers` has the triggers
that move them for other programs.
"""

from optilock.dialects.postgresql import migrations as migrations
from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
