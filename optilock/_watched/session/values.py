"""Values of a transaction's record: statements, moved versions, promises.

``expect`` makes a promise for a client that named the version, ``verify`` for a row that was only
read. A promise is kept by our own write of the row, which has that version in its WHERE, or by a
check of the row before COMMIT (:mod:`optilock._watched.guard.promises`). It ends with the
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from weakref import ref

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from optilock._mapped import Identity, Place, State, facts
from optilock.errors import ConcurrencyError, Entry, PreconditionFailed

T = TypeVar("T")
#: How many writes, moves and statements there were.
Point = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class SentStatement:
    """An UPDATE or INSERT statement of the session."""

    #: The base mapper of the rows that it may have moved.
    mapper: Mapper[Any]
    #: The versions that the session's objects of these rows held before it.
    held: dict[State, Any]
    #: How many writes of flushes came before it.
    sent: int
    #: It is an INSERT: rows of objects that the session had before it are not its own.
    adds: bool = False
    #: Promised rows that it found in the promised version, and has moved or deleted.
    rows: set[Place] = field(default_factory=set)


class MovedVersion(NamedTuple):
    """A version that a statement moved; without an object, the one before is unknown."""

    place: Place
    before: Any
    #: How many writes of flushes came before it.
    sent: int
    #: Gives the object the version from before.
    take_back: Callable[[], None] | None = None


class Doubt(NamedTuple):
    """A statement that was undone, whose moved or inserted rows are unknown."""

    #: The versions that objects of the session held before it.
    held: Mapping[State, Any]
    #: Rows that a flush had written before it.
    written: Collection[Place]
    #: It has only inserted rows, which are none of those.
    adds: bool = False


class PriorVersions(NamedTuple):
    """Versions and doubts of rows before the transaction, or a part of it, wrote them."""

    versions: Mapping[Place, Any]
    doubts: Mapping[Mapper[Any], Doubt]


class Departure(NamedTuple):
    """Objects that left the session together."""

    states: Collection[State]
    #: How much had been written by then.
    at: Point


class Promise(NamedTuple):
    """The row must be in this version."""

    mapper: Mapper[Any]
    identity: Identity
    version: Any
    #: By a client: then nothing is resolved, and the error is ``PreconditionFailed``.
    demanded: bool
    #: The ETag of a version of the row, as the client gets it.
    tag: Callable[[Any], str] | None = None


class RowsOfTransaction(dict[Place, T]):
    """Notes about rows, for one transaction."""

    #: The transaction, which goes when its session leaves it: no circle.
    _root: ref[SessionTransaction] | None = None

    def is_of(self, root: SessionTransaction) -> bool:
        """Return whether the notes are of this transaction."""
        return self._root is not None and self._root() is root

    def has(self, place: Place) -> bool:
        """Return whether there is a note about the row."""
        return place in self

    def in_transaction(self, root: SessionTransaction | None) -> None:
        """Forget notes of an earlier transaction."""
        if self._is_of_another(root):
            self.clear()
        self._root = None if root is None else ref(root)

    def _is_of_another(self, root: SessionTransaction | None) -> bool:
        return self._root is not None and (root is None or self._root() is not root)


class Promises(RowsOfTransaction[Promise]):
    """The promises of one transaction, by row, whose rows were not checked yet."""

    #: The others: they hold until COMMIT, which may still tell that one was broken.
    _looked_at: Mapping[Place, Promise] = MappingProxyType({})
    #: The next flush is the last one before COMMIT.
    end_next: bool = False
    #: Checks those that come before these rows, which a flush of the session locks.
    check_first: Callable[[Session, Iterable[Place]], None]

    def looked_at(self, places: Iterable[Place]) -> None:
        """Note that these rows were checked, and stay as promised."""
        checked = {place: self.pop(place) for place in [*places]}
        self._looked_at = {**self._looked_at, **checked}

    def has(self, place: Place) -> bool:
        return place in self or place in self._looked_at

    def all(self) -> Iterable[Promise]:
        return {**self._looked_at, **self}.values()

    def in_transaction(self, root: SessionTransaction | None) -> None:
        if self._is_of_another(root):
            self._looked_at = {}
        super().in_transaction(root)

    def add(self, place: Place, promise: Promise) -> None:
        """Add a promise; the first one of a row counts, and a demand makes it a demand."""
        known = self.get(place)
        if known is None:
            self[place] = promise
        elif promise.demanded and not known.demanded:
            self[place] = Promise(known.mapper, known.identity, known.version, True, promise.tag)

    def demand(self, place: Place) -> bool:
        """Return whether a client has named the version of this row."""
        promise = self.get(place) or self._looked_at.get(place)
        return promise is not None and promise.demanded

    def tag_in(self, entries: Sequence[Entry[Any]]) -> str | None:
        """Return the tag of the stored row, if the entries are about one that a client named."""
        if len(entries) != 1 or entries[0].database is None:
            return None
        promise = self.get(_place(entries[0])) or self._looked_at.get(_place(entries[0]))
        version = entries[0].database.get(entries[0].token or "")
        if promise is None or promise.tag is None or version is None:
            return None
        return promise.tag(version)


def conflict_of(entries: Iterable[Entry[Any]], promises: Promises | None) -> ConcurrencyError:
    """Return the error for these rows: ``PreconditionFailed`` if a client demanded one of them."""
    found = tuple(entries)
    if promises is not None and any(promises.demand(_place(entry)) for entry in found):
        error = PreconditionFailed(found)
        error.etag = promises.tag_in(found)
        return error
    return ConcurrencyError(found)


def _place(entry: Entry[Any]) -> Place:
    return facts(inspect(entry.model)).root, entry.identity


@dataclass(frozen=True, eq=False)
class NoBumpBlock:
    """Rows whose version is not moved: of these classes, or these objects; without any, all."""

    classes: tuple[type[Any], ...] = ()
    objects: tuple[object, ...] = ()

    def covers(self, obj: object) -> bool:
        if not (self.classes or self.objects):
            return True
        return isinstance(obj, self.classes) or any(obj is one for one in self.objects)
