"""What does a statement leave behind in its transaction: nothing, row locks, or more than that?"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any

#: Words that may stand before a parenthesis; any other one is taken for a function.
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


class Leaves(IntEnum):
    """What a statement, or a transaction so far, leaves behind; the greater counts."""

    NOTHING = 0
    #: Locks on rows that it has read.
    ROW_LOCKS = 1
    #: Changed rows, settings, locks of other kinds, savepoints; or nobody knows.
    MORE = 2


@lru_cache(maxsize=1000)
def left_by(query: Any) -> Leaves:
    """What does the statement leave behind?"""
    if not isinstance(query, str) or query[:6].upper() != "SELECT":
        return Leaves.MORE
    reading = _LOCKS.sub("", query)
    if _LEAVES_MORE.search(reading):
        return Leaves.MORE
    if not all(word.upper() in _NO_FUNCTIONS for word in _WORDS.findall(reading)):
        return Leaves.MORE
    return Leaves.NOTHING if reading == query else Leaves.ROW_LOCKS


def is_plain(query: Any) -> bool:
    """Does a statement only read, and leave nothing behind? If in doubt, it does not."""
    return left_by(query) is Leaves.NOTHING
