"""How long to wait before a request is sent again."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from httpx2 import Response

__all__ = ["backoff", "retry_after"]

#: Seconds: the longest first wait, and the longest of all.
_FIRST, _LONGEST = 0.05, 2.0


def backoff(attempt: int) -> float:
    """Return seconds by chance, of a range that doubles with each attempt."""
    return random.uniform(0, min(_LONGEST, _FIRST * 2**attempt))


def retry_after(answer: Response) -> float:
    """Return the seconds that the server asks for (RFC 9110, 10.2.3): a number, or a date.

    A date is compared with the server's own clock, if the answer has it.
    """
    asked = answer.headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdecimal():
        return float(asked)
    until = _moment(asked)
    now = _moment(answer.headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds()) if until else 0.0


def _moment(text: str) -> datetime | None:
    try:
        read = parsedate_to_datetime(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
