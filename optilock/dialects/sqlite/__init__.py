"""SQLite.

:mod:`database` has its answers, the meaning of its error codes and the clock. :mod:`rows` has the
form for many rows, and :mod:`queue_sql` the statements of queues. :mod:`migrations` has the
triggers of versions, how a table in use gets a version, and the catalogue.
:mod:`scope_triggers` has the triggers that move scopes for other programs.
"""

from optilock.dialects.sqlite.database import SQLite as SQLite
