"""Oracle, known from its documentation (Database Error Messages; python-oracledb)."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from optilock.dialects.base import Database
from optilock.dialects.cause import Cause


class Oracle(Database):
    names = ("oracle",)

    # -- what an error means ---------------------------------------------------------------------

    drivers = ("oracledb", "cx_Oracle", "sqlalchemy.dialects.oracle")
    causes = MappingProxyType(
        {
            # ORA-08177: can't serialize access for this transaction
            8177: Cause.CONFLICT,
            60: Cause.DEADLOCK,
            # NOWAIT, WAIT n, distributed_lock_timeout
            54: Cause.LOCK_TIMEOUT,
            30006: Cause.LOCK_TIMEOUT,
            2049: Cause.LOCK_TIMEOUT,
            28: Cause.CONNECTION_LOST,
            1012: Cause.CONNECTION_LOST,
            3113: Cause.CONNECTION_LOST,
            3114: Cause.CONNECTION_LOST,
            3135: Cause.CONNECTION_LOST,
            12537: Cause.CONNECTION_LOST,
            "DPI-1010": Cause.CONNECTION_LOST,
            "DPI-1080": Cause.CONNECTION_LOST,
            "DPY-1001": Cause.CONNECTION_LOST,
            "DPY-4011": Cause.CONNECTION_LOST,
        }
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        """The drivers put an object into ``args``; their own errors have number 0 and a name."""
        detail = error.args[0] if error.args else None
        name, number = getattr(detail, "full_code", None), getattr(detail, "code", None)
        if isinstance(name, str) and name:
            yield name
        if isinstance(number, int) and number:
            yield number
