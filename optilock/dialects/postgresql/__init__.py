"""PostgreSQL.

==============  ====================================================================================
database        its answers
causes          the answers about errors
rows            the statement for many rows: plain, with brief waits, or raising on a miss
arrays          the form of that statement's values
line            the statements of a connection that are sent together
cursors         psycopg's cursors, which ask the line of their connection
last_writes     the writes that are sent with COMMIT
migrations      the triggers of versions, how a table in use gets one, the catalogue, the clock
queue_sql       the statements of queues, and where their index scan begins
commit_tokens   the statements of units that are stored once
scope_rows      the statements of scopes, in the trip of COMMIT
scope_triggers  the triggers that move scopes for other programs
weak_settings   findings about settings that make versions weaker
==============  ====================================================================================

A pipelined unit of work sends BEGIN and COMMIT along with other statements.
"""

from optilock.dialects.postgresql import migrations as migrations
from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
