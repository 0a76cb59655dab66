"""What a transaction has promised about rows: the version that they must still be in at its end.

``expect`` promises for a client who named the version, ``verify`` for rows that were only read. A
promise is kept by our own write of the row, which has that version in its WHERE, or by a look at
the row before COMMIT (:mod:`optilock.guard.promises`). It ends with the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, SessionTransaction

from optilock.errors import ConcurrencyError, Entry, PreconditionFailed
from optilock.mapped.facts import facts
from optilock.mapped.keys import Identity, Place

__all__ = ["Promise", "Promises", "conflict_of"]


@dataclass(frozen=True)
class Promise:
    """The row must be in this version."""

    mapper: Mapper[Any]
    identity: Identity
    version: Any
    #: By a client: then nothing is resolved, and the error is ``PreconditionFailed``.
    demanded: bool


class Promises(dict[Place, Promise]):
    """The promises of one transaction, by row."""

    _root: SessionTransaction | None = None

    def in_transaction(self, root: SessionTransaction | None) -> None:
        """Forget what was promised in an earlier transaction."""
        if self._root is not None and root is not self._root:
            self.clear()
        self._root = root

    def add(self, promise: Promise) -> None:
        """What was promised first counts; a demand makes it a demand."""
        place = facts(promise.mapper).root, promise.identity
        known = self.get(place)
        if known is None:
            self[place] = promise
        elif promise.demanded and not known.demanded:
            self[place] = Promise(known.mapper, known.identity, known.version, demanded=True)

    def demand(self, place: Place) -> bool:
        """Has a client named the version of this row?"""
        promise = self.get(place)
        return promise is not None and promise.demanded


def conflict_of(entries: Iterable[Entry[Any]], promises: Promises | None) -> ConcurrencyError:
    """The error for these rows: ``PreconditionFailed`` when one of them was demanded."""
    found = tuple(entries)
    if promises and any(promises.demand(_place(entry)) for entry in found):
        return PreconditionFailed(found)
    return ConcurrencyError(found)


def _place(entry: Entry[Any]) -> Place:
    return facts(inspect(entry.model)).root, entry.identity
