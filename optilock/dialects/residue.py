"""What a statement leaves behind in its transaction, and what must not follow the last writes.

The last writes of a pipelined unit go in one trip with COMMIT (``postgresql/last_writes.py``).
After a row that has missed, the transaction is ended, and another one begins, if :func:`residue_of`
reads from the texts of its statements that nothing is lost by that.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any


class Interposed(Exception):
    """A listener sends a statement of its own before an announced one. Neither was sent.

    The sender of the announced statement catches this, and sends it without COMMIT.
    """

    def __init__(self) -> None:
        super().__init__(
            "a listener sent a statement of its own before the last write of a unit of work, which"
            " is then sent without COMMIT; nothing is lost."
        )


AFTER_THE_END = (
    "a statement was sent after the last write of a unit of work with pipelined=True, which had"
    " committed in the same trip: the unit is stored, and this statement cannot belong to it any"
    " more. Nothing was sent now. Send it earlier in the unit, in another unit, or leave the option"
    " out."
)

#: Words that may stand before a parenthesis; any other word is treated as a function.
_NO_FUNCTIONS = frozenset(
    {"ALL", "AND", "ANY", "AS", "BETWEEN", "BY", "CASE", "ELSE", "FROM", "IN", "JOIN", "NOT", "ON"}
    | {"OR", "SELECT", "THEN", "UNION", "WHEN", "WHERE", "NUMERIC", "VARCHAR"}
)
_WORDS = re.compile(r'([\w$"]+)\s*\(')
_LEAVES_MORE = re.compile(r"\b(FOR|INTO|LOCK)\b|;|--|/\*|:=", re.IGNORECASE)
_NAME = r'(?:\w+|"[^"]+")'
_LOCKS = re.compile(
    rf"\bFOR (?:NO KEY UPDATE|UPDATE|SHARE|KEY SHARE)(?: OF {_NAME}(?:, {_NAME})*)?"
    r"(?: NOWAIT| SKIP LOCKED)?\s*\Z"
)


class Residue(IntEnum):
    """The effects that a statement, or a transaction so far, leaves behind; the greater counts."""

    NOTHING = 0
    #: Locks on rows that it has read.
    ROW_LOCKS = 1
    #: Changed rows, settings, locks of other kinds, savepoints, or unknown effects.
    MORE = 2


@lru_cache(maxsize=1000)
def residue_of(query: Any) -> Residue:
    """Return what the statement leaves behind; in doubt ``MORE``."""
    if not isinstance(query, str) or query[:6].upper() != "SELECT":
        return Residue.MORE
    reading = _LOCKS.sub("", query)
    if _LEAVES_MORE.search(reading):
        return Residue.MORE
    if not all(word.upper() in _NO_FUNCTIONS for word in _WORDS.findall(reading)):
        return Residue.MORE
    return Residue.NOTHING if reading == query else Residue.ROW_LOCKS
