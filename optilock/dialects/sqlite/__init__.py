"""SQLite.

:mod:`database` has its answers, :mod:`rows` its statement for many rows, :mod:`triggers` the
triggers of versions, :mod:`rollout` how a table that is alive gets a version.
"""

from optilock.dialects.sqlite.database import SQLite as SQLite
