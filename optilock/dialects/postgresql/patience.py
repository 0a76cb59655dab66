"""Writes that wait for a lock only briefly, where the unit will run again and lock before.

PostgreSQL looks for a deadlock when somebody has waited for a second (``deadlock_timeout``), and
until then all stand still who want one of the rows. A unit that has locked some rows, and writes
others that it has not, may be one of two who wait for each other; and whoever has such a row is
nearly always about to write it, so the unit would miss it anyway.

So such writes set ``lock_timeout`` for the rest of the transaction, in their own WHERE: it is
judged before the row is waited for, and costs no statement. A limit of the application's own stays.
(https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-LOCK-TIMEOUT)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, ColumnElement, literal_column

from optilock.conditions.condition import Condition, Given
from optilock.errors import Entry

__all__ = ["BRIEFLY", "WaitsBriefly"]

#: Milliseconds; a COMMIT that is on its way over a network has arrived by then.
_LONGEST = 20
_CLAUSE = (
    "CASE current_setting('lock_timeout') WHEN '0'"
    f" THEN set_config('lock_timeout', '{_LONGEST}ms', true) IS NOT NULL ELSE true END"
)


@dataclass(frozen=True)
class WaitsBriefly(Condition):
    """True of every row."""

    def clause(self, given: Given) -> ColumnElement[bool]:
        return literal_column(_CLAUSE, Boolean())

    @property
    def looks(self) -> tuple[ColumnElement[Any], ...]:
        return ()

    def holds(self, params: Any, seen: Any) -> bool:
        return True

    def explain(self, entry: Entry[Any]) -> Exception | None:
        return None


BRIEFLY = (WaitsBriefly(),)
