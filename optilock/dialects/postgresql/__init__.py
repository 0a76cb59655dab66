"""PostgreSQL.

==============  ====================================================================================
database        the list of the classes that answer differently
locks           rows are locked, and stay as they are
waits           how long another transaction's lock is waited for
forms           the form in which many rows are written at once
one_row         statements that insert or change one row by its key
values          the form in which a column keeps a value, and SQL functions
isolation       how a transaction begins at a level, and what it meets there
ends            what ends a transaction before its COMMIT
trips           BEGIN and COMMIT that go with other statements
servers         servers that write the same rows, and their settings
watching        connections that wait for a lock, as tests ask for them
commit_tokens   the rows by which a unit finds out whether it is stored
scope_rows      the rows with the versions of scopes
queue_sql       the statements of a queue
scope_triggers  the triggers that move scopes for other programs
change_notices  the triggers that notify of changed rows
migrations      the triggers of versions, how a table in use gets one, the catalogue
causes          the meaning of error codes
rows            the statement for many rows: plain, with brief waits, or raising on a miss
arrays          the form of that statement's values
line            the statements of a connection that are sent together
cursors         psycopg's cursors, which ask the line of their connection
last_writes     the writes that are sent with COMMIT
weak_settings   findings about settings that make versions weaker
==============  ====================================================================================

A pipelined unit of work sends BEGIN and COMMIT along with other statements.
"""

from optilock.dialects.postgresql import migrations as migrations
from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
