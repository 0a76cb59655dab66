"""MariaDB and MySQL.

==============  ====================================================================================
database        their answers
causes          the answers about errors
rows            the statement for many rows, and the WHERE that finds rows by their keys
migrations      the triggers of versions, how a table in use gets one, the catalogue, the clock
queue_sql       the statements of queues
commit_tokens   the statements of units that are stored once
scope_rows      the statements of scopes
scope_triggers  the triggers that move scopes for other programs
galera          the differences of a cluster, and the wait of a statement that changes a table
pauses          the end of transactions that pause with locks which their programs did not ask for
weak_settings   findings about settings that make versions weaker
==============  ====================================================================================
"""

from optilock.dialects.mariadb import migrations as migrations
from optilock.dialects.mariadb.database import MariaDB as MariaDB
