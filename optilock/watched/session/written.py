"""What the running transaction of a session has written, and what a savepoint takes back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Mapper, SessionTransaction

from optilock.conditions.write import Write, first_expected, places_of
from optilock.mapped import Place
from optilock.watched.session.records import Before, Departed, Doubt, Moved, Point, Stated

__all__ = ["Written"]


class Written:
    """A part of :class:`~optilock.watched.session.watched.Watched`, which makes it."""

    #: Writes of the running transaction, to be read again if the database ends it.
    sent: list[Write]
    #: Those of them that were sums, of rows that others had changed since they were read.
    overtaken: list[Write] | tuple[()] = ()
    #: Writes that a savepoint has taken back.
    undone: list[Write]
    #: The versions before those.
    undone_before: dict[Place, Any]
    #: Objects whose version a statement has moved.
    moved: list[Moved]
    #: Our sides of the rows that it has written, where a conflict may be told at COMMIT.
    sides: dict[Place, Any] | None = None
    #: The UPDATE statements of the running transaction.
    stated: list[Stated]
    #: Classes that statements have inserted rows of, since the last savepoint began.
    added_to: set[Mapper[Any]]
    #: Who has left the session in the running transaction.
    departed: list[Departed]
    #: Objects of compared rows that the running transaction has written.
    compared: frozenset[Any] = frozenset()
    #: The transaction was committed or rolled back, or none has begun.
    decided: bool = True
    #: Nothing is noted of an earlier transaction.
    _forgotten: bool = True
    _savepoints: dict[SessionTransaction, Point]
    _before: tuple[Point, Point, Before] | None = None
    #: The rows of ``sent``, and how many writes of it are counted in.
    _flushed: set[Place]
    _counted: int = 0

    def in_savepoint(self, transaction: SessionTransaction) -> None:
        """Note how far the writes were when the savepoint began."""
        self._savepoints.setdefault(transaction, self.now())
        self.added_to.clear()

    def savepoints(self) -> Iterable[SessionTransaction]:
        """Those that are open, the innermost first."""
        return reversed(self._savepoints)

    def savepoint_ended(self, transaction: SessionTransaction) -> Point | None:
        """How far the writes were when it began, if it was neither released nor rolled back."""
        return self._savepoints.pop(transaction, None)

    def now(self) -> Point:
        return len(self.sent), len(self.moved), len(self.stated)

    def start_of(self, savepoint: SessionTransaction | None) -> Point:
        return (0, 0, 0) if savepoint is None else self._savepoints.get(savepoint, self.now())

    def has_written(self) -> bool:
        """Is there anything that may yet be undone, but for new rows?"""
        return not self.decided and bool(self.sent or self.moved or self.stated or self.compared)

    def move(self, place: Place, before: Any, take_back: Callable[[], None] | None = None) -> None:
        """A statement of the session moved the version of a row; an object of it has followed."""
        self.moved.append(Moved(place, before, self.at(), take_back))

    def at(self) -> int:
        """How many writes of flushes there were in the transaction that runs."""
        return 0 if self.decided else len(self.sent)

    def has_flushed(self, place: Place) -> bool:
        """Has a flush of the transaction written the row? Each write is counted in once."""
        if self._counted < len(self.sent):
            self._flushed |= places_of(self.sent[self._counted :])
            self._counted = len(self.sent)
        return place in self._flushed

    def is_ours(self, place: Place) -> bool:
        """Has the transaction written the row, and in the version that it had promised?"""
        if self.decided:  # what is noted of the transaction before is kept for its error
            return False
        flushed = self.has_flushed(place)
        if flushed and self.overtaken:
            flushed = place in places_of(self.as_read())
        if flushed or not self.stated:
            return flushed
        return any(place in stated.rows for stated in self.stated)

    def overtook(self, write: Write) -> None:
        """The write was a sum, and its row not in the version that was read."""
        if isinstance(self.overtaken, tuple):
            self.overtaken = []
        self.overtaken.append(write)

    def as_read(self) -> list[Write]:
        """The writes that found their rows in the version that they name."""
        others = set(map(id, self.overtaken))
        return [one for one in self.sent if id(one) not in others] if others else self.sent

    def refused(self, places: Collection[Place], start: int) -> None:
        """The flush that began when ``start`` writes were sent has not written these rows."""
        last = enumerate(self.sent[start:], start)
        gone = [number for number, write in last if not places_of([write]).isdisjoint(places)]

        def now(before: int) -> int:
            return before - bisect_left(gone, before)

        for number in reversed(gone):
            del self.sent[number]
        self.moved = [
            Moved(place, before, now(sent), back) for place, before, sent, back in self.moved
        ]
        self.stated = [replace(stated, sent=now(stated.sent)) for stated in self.stated]
        self.departed = [Departed(who, (now(at[0]), *at[1:])) for who, at in self.departed]
        self._savepoints = {one: (now(at[0]), *at[1:]) for one, at in self._savepoints.items()}
        self._before = None

    def doubts(self, savepoint: SessionTransaction | None) -> dict[Mapper[Any], Doubt]:
        """What the UPDATE statements that are rolled back now leave in doubt."""
        start, _, first = self.start_of(savepoint)
        found = self._doubts(start, self.stated[first:])
        del self.stated[first:]
        self.added_to.clear()
        return found

    def _doubts(self, start: int, some: list[Stated]) -> dict[Mapper[Any], Doubt]:
        found: dict[Mapper[Any], Doubt] = {}
        for stated in some:
            known = found.get(stated.mapper)
            if known is None:
                written = places_of(self.sent[start : stated.sent])
                found[stated.mapper] = Doubt(stated.held, written, stated.adds)
            elif known.adds and not stated.adds:
                found[stated.mapper] = Doubt(known.held, known.written)
        return found

    def before(self, start: Point, end: Point) -> Before:
        """What was known of the rows that were written between these points."""
        if self._before is None or self._before[:2] != (start, end):
            versions = self.versions_before(start, end)
            doubts = self._doubts(start[0], self.stated[start[2] : end[2]])
            self._before = start, end, Before(versions, doubts)
        return self._before[2]

    def versions_before(
        self, start: Point, end: Point, more: Iterable[Write] = ()
    ) -> dict[Place, Any]:
        """The versions before the writes, and before statements that moved the row first."""
        found: dict[Place, Any] = {}
        at = start[0]
        for moved in self.moved[start[1] : end[1]]:
            if moved.sent > at:
                first_expected(self.sent[at : moved.sent], found)
                at = moved.sent
            found.setdefault(moved.place, moved.before)
        return first_expected([*self.sent[at : end[0]], *more], found)

    def take_back(self, savepoint: SessionTransaction | None) -> list[Write]:
        """The writes that are rolled back now, with the savepoint or with the transaction."""
        if savepoint is None:
            self._move_back(0)
            return [*self.sent, *self.undone]
        return self.take_back_to(self._savepoints.get(savepoint, self.now()))

    def take_back_to(self, point: Point) -> list[Write]:
        """The writes since ``point``, which are undone."""
        start, moved, stated = point
        # The last one counts. Of savepoints inside each other that is the outermost: the versions
        # before the inner ones were never stored. Of two in a row it is what was read last.
        self.undone_before.update(self.versions_before(point, self.now()))
        self._move_back(moved)
        undone = self.sent[start:]
        self.undone += undone
        del self.sent[start:]
        self._flushed, self._counted = set(), 0
        del self.stated[stated:]
        self.added_to.clear()
        return undone

    def _move_back(self, start: int) -> None:
        for moved in reversed(self.moved[start:]):
            if moved.take_back is not None:
                moved.take_back()
        del self.moved[start:]
        self._before = None

    def committed(self) -> None:
        """What was written is stored."""
        self.decided = self._forgotten = True
        self.sent, self._counted, self._before = [], 0, None
        if self.sides is not None:
            self.sides = None
        if self._flushed or self._savepoints or self.departed or self.undone or self.undone_before:
            self._flushed, self._savepoints, self.departed = set(), {}, []
            self.undone, self.undone_before = [], {}
        if self.moved or self.stated or self.compared:
            self.moved, self.stated, self.compared = [], [], frozenset()
        if self.added_to:
            self.added_to = set()
        if self.overtaken:
            self.overtaken = ()
