"""PostgreSQL.

:mod:`database` has its answers, :mod:`sets` its statement for many rows, :mod:`triggers` the
triggers of versions, :mod:`rollout` how a table that is alive gets a version.
"""

from optilock.dialects.postgresql.database import PostgreSQL as PostgreSQL
