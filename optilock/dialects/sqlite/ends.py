"""How a transaction of SQLite ends before its COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from optilock.dialects.ends import Ends


class SQLiteEnds(Ends):
    savepoints_are_free = True

    def is_without_savepoint(self, error: BaseException) -> bool:
        """SQLITE_ERROR; SQLITE_BUSY while a statement still writes."""
        return 1 in self.database.codes(error)

    def open_transactions(self, connection: Any) -> Callable[[], bool]:
        """Return what asks SQLite itself, also after an error (sqlite3_get_autocommit)."""
        return partial(getattr, connection, "in_transaction", False)
