"""What a roll-out tells: while it runs, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Progress", "Report", "Silent"]


@dataclass(frozen=True)
class Report:
    """What was done."""

    #: Names of the steps that were needed, in order; empty when the table was ready already.
    steps: tuple[str, ...] = ()
    #: Rows that were given a version.
    filled: int = 0
    batches: int = 0
    #: How often a lock was not to be had, and the step was tried again.
    waits: int = 0
    seconds: float = 0.0


class Progress(Protocol):
    """Somebody who watches."""

    def step(self, name: str, total: int | None = None) -> None:
        """A step begins; ``total`` rows are to be filled, as far as the database can tell."""

    def filled(self, rows: int) -> None:
        """So many rows more have a version."""

    def waiting(self, why: str) -> None:
        """A lock was not to be had; it is tried again."""


class Silent:
    """Nobody watches."""

    def step(self, name: str, total: int | None = None) -> None: ...
    def filled(self, rows: int) -> None: ...
    def waiting(self, why: str) -> None: ...
