"""MariaDB and MySQL.

:mod:`database` has their answers, :mod:`rows` their statement for many rows, :mod:`keys` the
WHERE that finds rows by their keys and reads no other, :mod:`migrations` the
triggers of versions, and how a table that is alive gets a version, :mod:`clock` the time at
which a row is looked at, :mod:`messages` the statements of queues.
"""

from optilock.dialects.mariadb import clock as clock
from optilock.dialects.mariadb.database import MariaDB as MariaDB
