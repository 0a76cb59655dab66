"""How long a row lock is waited for.

``Wait()`` waits as the database is set up to, ``Wait(seconds=0)`` not at all, ``Wait(skip=True)``
neither: a row that somebody else has locked is left out of the answer. Each database says in
:meth:`Database.lock_within` and :meth:`Database.waiting` how it is told so.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Wait"]


@dataclass(frozen=True)
class Wait:
    """How long, in seconds; ``None``: as the database is set up."""

    seconds: float | None = None
    skip: bool = False

    @property
    def usual(self) -> bool:
        return self.seconds is None and not self.skip

    @property
    def milliseconds(self) -> int | None:
        """How long to wait at most; 0 also for who skips; ``None``: as the database is set up."""
        if self.skip:
            return 0
        return None if self.seconds is None else round(self.seconds * 1000)
