"""CockroachDB: PostgreSQL's codes, through PostgreSQL's drivers.

Known from its documentation: 40001 is "restart transaction", 40003 "result is ambiguous".
An error shows only the driver, so at run time it is read by PostgreSQL's file.
"""

from __future__ import annotations

from collections.abc import Iterator

from optilock.dialects.base import Database
from optilock.dialects.postgresql.database import PostgreSQL


class CockroachDB(Database):
    names = ("cockroachdb",)

    # -- what an error means ---------------------------------------------------------------------

    causes = PostgreSQL.causes
    lost_before_commit = PostgreSQL.lost_before_commit
    errors_end = PostgreSQL.errors_end
    release_may_fail_all = PostgreSQL.release_may_fail_all

    def codes(self, error: BaseException) -> Iterator[str | int]:
        return PostgreSQL().codes(error)
