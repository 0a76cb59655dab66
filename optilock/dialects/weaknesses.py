"""What a database says of itself that makes the check of versions void, or weaker.

A weakness is found by one small function, which takes what was read and yields it. Each engine has
its functions in a file of its own, ``weak``, with a list of them at its end: to add one, write it
and name it there.
"""

from __future__ import annotations

from typing import NamedTuple


class Weakness(NamedTuple):
    """Something that makes the check void (``severe``) or weaker."""

    code: str
    severe: bool
    message: str
    advice: str
