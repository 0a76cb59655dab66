"""Firebird: a committed change and a real deadlock share one code, and tell apart by the next."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from optilock.dialects.base import Database
from optilock.dialects.cause import Cause


class Firebird(Database):
    names = ("firebird",)

    # -- what an error means (Firebird language reference, appendix B) ---------------------------

    drivers = ("firebird.driver", "fdb")
    # In order: an error carries several, and the first of this table decides.
    causes = MappingProxyType(
        {
            # lock conflict on no wait transaction, lock time-out on wait transaction
            335544345: Cause.LOCK_TIMEOUT,
            335544510: Cause.LOCK_TIMEOUT,
            # update conflicts with concurrent update, concurrent transaction number is …
            335544451: Cause.CONFLICT,
            335544878: Cause.CONFLICT,
            335544336: Cause.DEADLOCK,
            335544648: Cause.CONNECTION_LOST,
            335544721: Cause.CONNECTION_LOST,
            335544726: Cause.CONNECTION_LOST,
            335544727: Cause.CONNECTION_LOST,
            335544741: Cause.CONNECTION_LOST,
            335544856: Cause.CONNECTION_LOST,
            "40001": Cause.CONFLICT,
            -913: Cause.CONFLICT,
        }
    )

    def codes(self, error: BaseException) -> Iterator[str | int]:
        found = set(_codes(error))
        yield from (code for code in self.causes if code in found)
        yield from found.difference(self.causes)


def _codes(error: BaseException) -> Iterator[str | int]:
    """firebird-driver has attributes; fdb puts text, SQLCODE and the first code into ``args``."""
    yield from (code for code in getattr(error, "gds_codes", ()) if isinstance(code, int))
    named = (getattr(error, "sqlcode", None), getattr(error, "sqlstate", None))
    yield from (code for code in (*named, *error.args[1:]) if isinstance(code, (int, str)))
