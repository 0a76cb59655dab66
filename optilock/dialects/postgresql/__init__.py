"""PostgreSQL.

:mod:`database` lists the classes of the features that it answers differently: :mod:`locks`,
:mod:`waits`, :mod:`forms`, :mod:`one_row`, :mod:`values`, :mod:`isolation`, :mod:`ends`,
:mod:`trips`, :mod:`servers`, :mod:`watching`, :mod:`commit_tokens`, :mod:`scope_rows`,
:mod:`queue_sql`, :mod:`scope_triggers`, and :mod:`migrations` with the triggers of versions, how a
table in use gets a version, and the catalogue. :mod:`causes` has the meaning of its error codes.

:mod:`rows` has the statement for many rows, in three variants: plain, waiting only briefly for
locks, and raising an error for a row that does not match; :mod:`arrays` are the form of its values.
:mod:`weak_settings` finds what makes versions weaker.

A pipelined unit of work sends BEGIN and COMMIT along with other statements. The :mod:`cursors` of
psycopg ask the :mod:`line` of their connection which statements are sent together, and
:mod:`last_writes` are sent with COMMIT.
"""

from optilock.dialects.postgresql import migrations as migrations
from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
