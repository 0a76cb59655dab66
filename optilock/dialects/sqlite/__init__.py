"""SQLite.

:mod:`database` has its answers, the form for many rows, the statements of queues and the clock.
:mod:`migrations` has the triggers of versions, how a table in use gets a version, and the
catalogue.
:mod:`scope_triggers` has the triggers that move scopes for other programs.
"""

from optilock.dialects.sqlite.database import SQLite as SQLite
