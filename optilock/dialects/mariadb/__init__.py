"""MariaDB and MySQL.

==============  ====================================================================================
database        the list of the classes that answer differently
locks           rows are locked, and stay as they are
waits           how long another transaction's lock is waited for
keys            statements with the keys of rows
forms           the form in which many rows are written at once
one_row         statements that insert or change one row by its key
values          the form in which a column keeps a value, and SQL functions
isolation       how a transaction begins at a level, and what it meets there
ends            what ends a transaction before its COMMIT
servers         servers that write the same rows, and their settings
watching        connections that wait for a lock, as tests ask for them
commit_tokens   the rows by which a unit finds out whether it is stored
scope_rows      the rows with the versions of scopes
queue_sql       the statements of a queue
tables          what reflection and migrations need
scope_triggers  the triggers that move scopes for other programs
migrations      the triggers of versions, how a table in use gets one, the catalogue
causes          the meaning of error codes
rows            the statement for many rows, and the WHERE that finds rows by their keys
galera          the differences of a cluster, and the wait of a statement that changes a table
weak_settings   findings about settings that make versions weaker
pauses          the end of transactions that pause with locks which they did not ask for
==============  ====================================================================================
"""

from optilock.dialects.mariadb import migrations as migrations
from optilock.dialects.mariadb.database import MariaDB as MariaDB
