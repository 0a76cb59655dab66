"""MariaDB and MySQL.

:mod:`database` has their answers, :mod:`rows` their statement for many rows, :mod:`migrations`
the triggers of versions, and how a table that is alive gets a version.
"""

from optilock.dialects.mariadb.database import MariaDB as MariaDB
