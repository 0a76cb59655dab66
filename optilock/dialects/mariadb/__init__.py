"""MariaDB and MySQL.

:mod:`database` lists the classes of the features that they answer differently: :mod:`locks`,
:mod:`waits`, :mod:`keys`, :mod:`forms`, :mod:`one_row`, :mod:`values`, :mod:`isolation`,
:mod:`ends`, :mod:`servers`, :mod:`watching`, :mod:`commit_tokens`, :mod:`scope_rows`,
:mod:`queue_sql`, :mod:`tables`, :mod:`scope_triggers`, and :mod:`migrations` with the triggers of
versions, how a table in use gets a version, and the catalogue. :mod:`causes` has the meaning of
their error codes.

:mod:`rows` has the statement for many rows, and the WHERE that finds rows by their keys and reads
no other. :mod:`galera` has the differences of a cluster, and the wait of a statement that changes a
table. :mod:`weak_settings` finds what makes versions weaker. :mod:`pauses` ends transactions that
pause with locks which their programs did not ask for.
"""

from optilock.dialects.mariadb import migrations as migrations
from optilock.dialects.mariadb.database import MariaDB as MariaDB
