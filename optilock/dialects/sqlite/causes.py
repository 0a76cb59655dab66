"""The meaning of the result codes of SQLite (https://sqlite.org/rescode.html)."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from optilock.dialects.causes import Cause
from optilock.dialects.refusals import Refusals


class SQLiteCodes(Refusals):
    drivers = ("sqlite3", "aiosqlite", "pysqlcipher3", "sqlcipher3")
    #: READONLY and AUTH.
    forbidden = frozenset({8, 23})
    #: READONLY, INTERRUPT, IOERR, FULL and CANTOPEN.
    hindrances = frozenset({8, 9, 10, 13, 14})
    #: CONSTRAINT_CHECK, CONSTRAINT_TRIGGER.
    unstorable = frozenset({275, 1811})
    causes = MappingProxyType(
        {
            # BUSY_SNAPSHOT: what was read is no longer the newest; no waiting helps
            517: Cause.CONFLICT,
            # BUSY and its extended forms; LOCKED_SHAREDCACHE (plain LOCKED is one's own doing)
            5: Cause.LOCK_TIMEOUT,
            262: Cause.LOCK_TIMEOUT,
        }
    )
    #: IOERR: the journal may or may not have reached the disk.
    causes_at_commit = MappingProxyType({10: Cause.UNKNOWN_OUTCOME})

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The extended result code, and the primary one in its lowest byte."""
        code = getattr(error, "sqlite_errorcode", None)
        if isinstance(code, int):
            yield from (code, code & 0xFF)
