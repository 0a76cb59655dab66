"""Does a statement only read, and leave nothing behind in its transaction: no lock, no setting?"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

#: Words that may stand before a parenthesis; any other one is taken for a function.
_NO_FUNCTIONS = frozenset(
    {"ALL", "AND", "ANY", "AS", "BETWEEN", "BY", "CASE", "ELSE", "FROM", "IN", "JOIN", "NOT", "ON"}
    | {"OR", "SELECT", "THEN", "UNION", "WHEN", "WHERE", "NUMERIC", "VARCHAR"}
)
_WORDS = re.compile(r'([\w$"]+)\s*\(')
_LEAVES_SOMETHING = re.compile(r"\b(FOR|INTO|LOCK)\b|;|--|/\*|:=", re.IGNORECASE)


@lru_cache(maxsize=1000)
def is_plain(query: Any) -> bool:
    """Is it so? If in doubt, it is not."""
    if not isinstance(query, str) or query[:6].upper() != "SELECT":
        return False
    if _LEAVES_SOMETHING.search(query):
        return False
    return all(word.upper() in _NO_FUNCTIONS for word in _WORDS.findall(query))
