"""DuckDB: optimistic by itself, and the one engine whose errors carry no code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType

from optilock.dialects.base import Database
from optilock.dialects.cause import Cause

_TRANSACTION = "TransactionContext Error"
# "Conflict on update!", "Conflict on tuple deletion!", "Transaction conflict: …", "write-write
# conflict"; two inserts of one key meet at COMMIT as "PRIMARY KEY or UNIQUE constraint violation".
_CONFLICT = re.compile(rf"{_TRANSACTION}:.*([Cc]onflict|PRIMARY KEY or UNIQUE)")


class DuckDB(Database):
    names = ("duckdb",)

    # -- what an error means ---------------------------------------------------------------------

    drivers = ("duckdb", "_duckdb")
    causes = MappingProxyType({"conflict": Cause.CONFLICT})

    def codes(self, error: BaseException) -> Iterator[str | int]:
        text = str(error)
        if _CONFLICT.match(text):
            yield "conflict"
        if text.startswith(_TRANSACTION):
            yield _TRANSACTION
