"""MariaDB and MySQL.

:mod:`database` has their answers, and :mod:`causes` those about errors. :mod:`rows` has the
statement for many rows, and the WHERE that finds rows by their keys and reads no other.
:mod:`migrations` has the triggers of versions, how a table in use gets a version, the catalogue and
the clock. :mod:`queue_sql` has the statements of queues, :mod:`commit_tokens` those of units that
are stored once, and :mod:`scope_rows` those of scopes. :mod:`galera` has the differences of a
cluster, and the wait of a statement that changes a table. :mod:`weak_settings` finds what makes
versions weaker.
:mod:`pauses` ends transactions that pause with locks which their programs did not ask for.
:mod:`scope_triggers` has the triggers that move scopes for other programs.
"""

from optilock.dialects.mariadb import migrations as migrations
from optilock.dialects.mariadb.database import MariaDB as MariaDB
