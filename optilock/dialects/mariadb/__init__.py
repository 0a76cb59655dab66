"""MariaDB and MySQL.

:mod:`database` has their answers, :mod:`rows` their statement for many rows, :mod:`keys` the
WHERE that finds rows by their keys and reads no other, :mod:`migrations`
the triggers of versions, and how a table that is alive gets a version, :mod:`table_locks` for how
long it is waited for,
:mod:`clock` the time at which a row is looked at, :mod:`messages` the statements of queues,
:mod:`galera` what is different on a cluster, :mod:`galera_tables` what a migration does there.
:mod:`catalogue` what its tables have, and :mod:`weak` what makes versions weaker there.
"""

from optilock.dialects.mariadb import clock as clock
from optilock.dialects.mariadb.database import MariaDB as MariaDB
