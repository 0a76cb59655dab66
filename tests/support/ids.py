"""Names of parameters: the same in every process, so that tests can be spread over several."""

from __future__ import annotations

import re

__all__ = ["told"]


def told(value: object) -> str:
    """The value as text, without the address that Python gives to what has no text.

    Those of a set have no order of their own.
    """
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
