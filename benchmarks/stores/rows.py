"""What a piece of work may do, whichever library does it.

A piece of work is a function of :class:`Rows`; a :class:`Store` runs it in one transaction, and
again until it is committed. ``edit`` gives a row that ``set`` will write: who locks, locks there.
``sure`` gives one that is not written, but must be as it was read when the work is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from benchmarks.stores.kinds import Kind

__all__ = ["Raise", "Rows", "Store", "Work"]

T = TypeVar("T")


class Raise(NamedTuple):
    """So much is added to a column of a row."""

    kind: Kind
    key: int
    column: str
    amount: int


class Rows(Protocol):
    """The rows of one transaction."""

    def read(self, kind: Kind, key: int) -> Any:
        """A row that is only looked at; its columns are attributes."""

    def sure(self, kind: Kind, key: int) -> Any:
        """A row on which a decision depends, and which is not written."""

    def edit(self, kind: Kind, key: int) -> Any:
        """A row that will be written."""

    def set(self, kind: Kind, row: Any, **values: Any) -> None:
        """New values for a row that ``edit`` has given; once for each row."""

    def raise_by(self, *raises: Raise) -> None:
        """Add to numbers, in the best way that the library has for it."""

    def add(self, kind: Kind, **values: Any) -> None:
        """One row more."""


Work = Callable[[Rows], T]


@dataclass(frozen=True)
class Look(Generic[T]):
    """Work that only reads, and whose author knows it."""

    work: Work[T]

    def __call__(self, rows: Rows) -> T:
        return self.work(rows)


class Store(Protocol):
    """One library, on one connection."""

    def run(self, work: Work[T]) -> T:
        """Do the work in a transaction, and again from the start until it is committed."""

    def look(self, work: Work[T]) -> T:
        """The same for work that only reads."""

    def close(self) -> None:
        """Give the connection back."""
