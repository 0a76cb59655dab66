"""A statement that meets a lock of SQLite is refused, so nothing waits."""

from __future__ import annotations

from typing import Any

from optilock.dialects.watching import Watching


class SQLiteWatching(Watching):
    refuses_when_busy = True
    watched_settings = ("PRAGMA busy_timeout = 0",)

    def is_busy(self, error: BaseException) -> bool:
        """Return whether it is SQLITE_BUSY, and not a snapshot that no waiting makes newer."""
        codes = tuple(self.database.codes(error))
        return 5 in codes and 517 not in codes

    def is_in_memory(self, connection: Any) -> bool:
        cursor = connection.cursor()
        cursor.execute("PRAGMA database_list")
        return not cursor.fetchall()[0][2]
