"""A batch that is sent again: it was stored as a whole, or not at all.

So each operation is bound to all of them, and one row that still is in the version which the batch
has made proves that all were written: those of which nothing could be known alone, too, deletes and
rows under ``"*"`` among them. Then nothing is written again, and the answer is the one that was
lost, with the versions that the rows got. Where somebody has written every such row in between, or
the batch has none, it fails as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from sqlalchemy.orm import Session

from optilock.entities.fingerprints import counted
from optilock.entities.idempotency import Idempotency, Mark, Request, mark_of
from optilock.entities.operations import Stored
from optilock.mapped import facts
from optilock.session.connections import connection_to_write
from optilock.statements.one_row import look_at, read_again

__all__ = ["SentBefore", "Whole", "whole"]


class SentBefore(Exception):
    """Rolls the savepoint back: the row has the version that the batch gave it."""

    def __init__(self, index: int, version: Any) -> None:
        super().__init__(index, version)
        self.index, self.version = index, version


@dataclass(frozen=True)
class Whole:
    """The operations of a batch, and by what each is known again."""

    #: Bound to all of them.
    idempotency: Idempotency
    requests: Sequence[Request]
    marks: Sequence[Mark | None]

    def found(self, session: Session) -> list[Stored] | None:
        """What was stored when the batch came before; ``None``: nothing shows that it did."""
        for request, mark in zip(self.requests, self.marks, strict=True):
            if mark is None:
                continue
            mapper = request.mapper
            connection = connection_to_write(session, mapper)
            stored, _ = look_at(connection, mapper, request.identity, of_class=False)
            key = stored and mark.key_of(stored[facts(mapper).token])
            if key:
                return self._told(session, key)
        return None

    def stored_before(self, session: Session, sent: SentBefore) -> list[Stored]:
        """The same, where one operation has shown it."""
        mark = self.marks[sent.index]
        key = mark and mark.key_of(sent.version)
        assert key
        return self._told(session, key)

    def _told(self, session: Session, key: bytes) -> list[Stored]:
        """What the batch has made of each row, under this secret; what is there now may be more."""
        told = []
        for request, mark in zip(self.requests, self.marks, strict=True):
            mapper, identity = request.mapper, request.identity
            read_again(session, mapper, identity)
            version = None if mark is None else mark.by(key)
            tag = None if mark is None else request.etags.tag(mapper, identity, version)
            told.append(Stored(identity, version, tag, again=True))
        return told


def whole(idempotency: Idempotency, requests: Sequence[Request], data: Sequence[bytes]) -> Whole:
    """Each operation is bound to the ``data`` of all of them."""
    idempotency = replace(idempotency, batch=sha256(counted(*data)).digest())
    marks = [mark_of(idempotency, request) for request in requests]
    return Whole(idempotency, requests, marks)
