"""The record of a transaction: its connections, writes and locks, and what a savepoint undoes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any
from weakref import ref

from sqlalchemy import Connection
from sqlalchemy.orm import Mapper, SessionTransaction

from optilock._mapped import Place
from optilock._undocumented.flushes import nested_transaction, transaction_of
from optilock._watched.session.values import (
    Departure,
    Doubt,
    MovedVersion,
    Point,
    PriorVersions,
    Promises,
    RowsOfTransaction,
    SentStatement,
)
from optilock.conditions.write import Write, expected_versions, places_of

_numbers = count(1)
#: So many statements of a transaction are known.
_MOST_STATEMENTS = 20


class TransactionRecord:
    """The running transaction of a watched session, kept until the next one begins.

    Only this file writes the fields, but for those of the last group.
    """

    # -- the transaction itself ------------------------------------------------------------------

    #: The running transaction, once it has begun on a connection.
    root: SessionTransaction | None = None
    #: The transaction was committed or rolled back, or none has begun.
    decided: bool = True
    #: Nothing is noted of an earlier transaction.
    _forgotten: bool = True
    #: The session's connections in the running transaction.
    connections: list[Connection]
    #: Those of them on which every statement commits by itself.
    autocommitting: tuple[Connection, ...] = ()
    #: The transactions of the connections.
    _begun: list[Any]
    #: Another statement than a query, or the row of a flush, may have been sent.
    sent_more: bool = False
    #: Later transactions, of any session, have higher numbers.
    number: int = 0

    # -- what it has written ---------------------------------------------------------------------

    #: The running transaction has sent a statement that changes rows, and is no row of a flush.
    wrote_more: bool = False
    #: Statements of the program that the running transaction has sent, and that change rows.
    own_statements: list[Any] | tuple[()] = ()
    #: Writes of the running transaction, to be read again if the database ends it.
    sent: list[Write]
    #: Those of them that were sums, of rows that others had changed since they were read.
    overtaken: list[Write] | tuple[()] = ()
    #: Writes that a savepoint has taken back.
    undone: list[Write]
    #: The versions before those.
    undone_before: dict[Place, Any]
    #: Objects whose version a statement has moved.
    moved: list[MovedVersion]
    #: Our sides of the rows that it has written, where COMMIT may report a conflict.
    sides: dict[Place, Any] | None = None
    #: The UPDATE statements of the running transaction.
    stated: list[SentStatement]
    #: Classes that statements have inserted rows of, since the last savepoint began.
    added_to: set[Mapper[Any]]
    #: Objects that have left the session in the running transaction.
    departed: list[Departure]
    #: Objects of compared rows that the running transaction has written.
    compared: frozenset[Any] = frozenset()
    _savepoints: dict[SessionTransaction, Point]
    _before: tuple[Point, Point, PriorVersions] | None = None
    #: The rows of ``sent``, and how many writes of it are counted in.
    _flushed: set[Place]
    _counted: int = 0

    # -- what it has locked, and read first ------------------------------------------------------

    #: Rows that the transaction has locked as it read them, and in which version.
    locked: dict[Place, Any] | None = None
    #: The transaction has locked rows before it has written any: others may wait for it.
    holds_locks: bool = False
    #: The transaction limits waits for locks; so will the one that goes on with its connection.
    waits_briefly: bool = False
    #: What a later attempt of a retry has read first of rows that an attempt before it wanted to
    #: write (:mod:`optilock._watched.guard.repeats`).
    judged: dict[Any, Any] | None = None
    #: What the transaction has sent, where a condition is demanded of it.
    conditions: Any = None

    # -- written by one other file each ----------------------------------------------------------

    #: What must still be true of rows at the end of the transaction.
    promises: Promises | None = None
    #: Rows with a resolver of their own for the transaction: after ``overwrite()`` our side wins.
    settled_by: RowsOfTransaction[Any] | None = None
    #: Rows that were merged with the version that their client has seen.
    merged: RowsOfTransaction[None] | None = None
    #: The savepoint that is being released.
    releasing: ref[SessionTransaction] | None = None
    #: The values that we wanted in rows still unwritten when the transaction failed.
    wanted: list[Any] | None = None
    #: The versions, before the transaction's own writes, of rows that were just rolled back.
    before_rollback: Mapping[Any, Any] = MappingProxyType({})
    #: Objects have left that wait for the outcome.
    awaited: bool = False

    def __init__(self) -> None:
        self.sent, self.undone, self.moved, self.stated, self.departed = [], [], [], [], []
        self._flushed, self.added_to = set(), set()
        self.undone_before, self._savepoints = {}, {}
        self.connections, self._begun = [], []

    # -- its beginning and its end ---------------------------------------------------------------

    def in_transaction(self, root: SessionTransaction | None) -> None:
        """Forget what belongs to an earlier transaction than this outermost one."""
        if root is self.root:
            return
        self.root, self.number = root, next(_numbers)
        if not self._forgotten:
            self.committed()
        self.decided = self._forgotten = False
        self.connections, self._begun, self.autocommitting = [], [], ()
        self.judged = self.locked = None
        self.holds_locks = False
        for said in (self.promises, self.settled_by, self.merged):
            if said is not None:
                said.in_transaction(root)

    def connected(
        self, connection: Connection, *, autocommits: bool = False, keeps_sides: bool = False
    ) -> None:
        """Note a connection of the running transaction.

        Args:
            autocommits: every statement on it commits by itself.
            keeps_sides: our sides of rows are kept, because COMMIT may report a conflict.
        """
        self.connections.append(connection)
        self._begun.append(nested_transaction(connection) or transaction_of(connection))
        if keeps_sides and not self.sides:
            self.sides = {}
        if autocommits:
            self.autocommitting = (*self.autocommitting, connection)

    def transactions(self) -> Iterable[SessionTransaction]:
        """Return the transaction and its savepoints."""
        return self._savepoints if self.root is None else (self.root, *self._savepoints)

    def goes_on(self) -> bool:
        """Return whether the session leaves open what others have begun, and its writes in that."""
        return any(begun is not None and begun.is_active for begun in self._begun)

    def rolled_back(self) -> None:
        """Note that the transaction was rolled back as a whole."""
        self.decided = True

    def _ended(self) -> None:
        self.decided, self.wrote_more, self.own_statements = True, False, ()
        self.departed, self._begun, self.root = [], [], None
        self.autocommitting = ()
        if self.conditions is not None:
            self.conditions.over()
            self.conditions = None

    # -- notes of others -------------------------------------------------------------------------

    def note_other_statement(self, *, writes: bool = False) -> None:
        """Note that other statements than queries and rows of flushes may be sent.

        ``writes``: one that changes rows is.
        """
        self.sent_more = True
        if writes:
            self.wrote_more = True

    def note_locks(self) -> None:
        """Note that the transaction has locked rows before it has written any."""
        self.holds_locks = True

    def note_locked(self, place: Place, version: Any) -> None:
        """Note that the transaction has locked the row as it read it."""
        if self.locked is None:
            self.locked = {}
        self.locked[place] = version

    def forget_locked(self) -> None:
        """Forget the locks: the transaction may have begun again."""
        self.locked = None

    def note_brief_waits(self) -> None:
        """Note that the transaction limits waits for locks."""
        self.waits_briefly = True

    def note_compared(self, states: Iterable[Any]) -> None:
        """Note that objects whose values are compared were written."""
        self.compared = self.compared.union(states)

    def note_conditions(self, conditions: Any) -> None:
        """Keep what the transaction sends, because a condition is demanded of it."""
        self.conditions = conditions

    def read_first(self) -> dict[Any, Any]:
        """Return what this attempt has read first of rows that an earlier one wanted to write."""
        if self.judged is None:
            self.judged = {}
        return self.judged

    def forget_read_first(self) -> None:
        """Forget it: what follows in the transaction is this attempt's own."""
        self.judged = None

    def undo_departures(self, start: Point) -> None:
        """Note that writes of departed objects since ``start`` are undone."""
        self.departed = [
            Departure(states, (min(at[0], start[0]), min(at[1], start[1]), min(at[2], start[2])))
            for states, at in self.departed
        ]

    # -- savepoints, writes and statements -------------------------------------------------------

    def in_savepoint(self, transaction: SessionTransaction) -> None:
        """Note how far the writes were when the savepoint began."""
        self._savepoints.setdefault(transaction, self.now())
        self.added_to.clear()

    def savepoints(self) -> Iterable[SessionTransaction]:
        """Return the open savepoints, the innermost first."""
        return reversed(self._savepoints)

    def savepoint_ended(self, transaction: SessionTransaction) -> Point | None:
        """Forget the savepoint; return its beginning if it was neither released nor rolled back."""
        return self._savepoints.pop(transaction, None)

    def now(self) -> Point:
        return len(self.sent), len(self.moved), len(self.stated)

    def start_of(self, savepoint: SessionTransaction | None) -> Point:
        return (0, 0, 0) if savepoint is None else self._savepoints.get(savepoint, self.now())

    def has_written(self) -> bool:
        """Return whether a rollback would undo anything but new rows."""
        return not self.decided and bool(self.sent or self.moved or self.stated or self.compared)

    @property
    def has_work(self) -> bool:
        """Return whether COMMIT would store anything."""
        return self.wrote_more or bool(self.sent or self.moved or self.stated or self.compared)

    def note_own_statement(self, statement: Any) -> None:
        """Note a statement of the program that changes rows."""
        self.sent_more = self.wrote_more = True
        if len(self.own_statements) < _MOST_STATEMENTS:
            self.own_statements = [*self.own_statements, statement]

    def move(self, place: Place, before: Any, take_back: Callable[[], None] | None = None) -> None:
        """Note that a statement moved the version of a row, and that an object has followed."""
        self.moved.append(MovedVersion(place, before, self.at(), take_back))

    def at(self) -> int:
        """Return how many rows the flushes of the running transaction have written."""
        return 0 if self.decided else len(self.sent)

    def has_flushed(self, place: Place) -> bool:
        """Return whether a flush of the transaction has written the row."""
        if self._counted < len(self.sent):
            self._flushed |= places_of(self.sent[self._counted :])
            self._counted = len(self.sent)
        return place in self._flushed

    def is_ours(self, place: Place) -> bool:
        """Return whether the transaction has written the row, in the version that it promised."""
        if self.decided:  # notes of the transaction before are kept for its error
            return False
        flushed = self.has_flushed(place)
        if flushed and self.overtaken:
            flushed = place in places_of(self.as_read())
        if flushed or not self.stated:
            return flushed
        return any(place in stated.rows for stated in self.stated)

    def overtook(self, write: Write) -> None:
        """Note a sum whose row was not in the version that was read."""
        if isinstance(self.overtaken, tuple):
            self.overtaken = []
        self.overtaken.append(write)

    def as_read(self) -> list[Write]:
        """Return the writes that found their rows in the version that they name."""
        others = set(map(id, self.overtaken))
        return [one for one in self.sent if id(one) not in others] if others else self.sent

    def refused(self, places: Collection[Place], start: int) -> None:
        """Forget writes of the flush that began after ``start`` writes: these rows missed."""
        last = enumerate(self.sent[start:], start)
        gone = [number for number, write in last if not places_of([write]).isdisjoint(places)]

        def now(before: int) -> int:
            return before - bisect_left(gone, before)

        for number in reversed(gone):
            del self.sent[number]
        self.moved = [
            MovedVersion(place, before, now(sent), back) for place, before, sent, back in self.moved
        ]
        self.stated = [replace(stated, sent=now(stated.sent)) for stated in self.stated]
        self.departed = [Departure(who, (now(at[0]), *at[1:])) for who, at in self.departed]
        self._savepoints = {one: (now(at[0]), *at[1:]) for one, at in self._savepoints.items()}
        self._before = None

    def doubts(self, savepoint: SessionTransaction | None) -> dict[Mapper[Any], Doubt]:
        """Return the doubts that the statements leave which are rolled back now."""
        start, _, first = self.start_of(savepoint)
        found = self._doubts(start, self.stated[first:])
        del self.stated[first:]
        self.added_to.clear()
        return found

    def _doubts(self, start: int, some: list[SentStatement]) -> dict[Mapper[Any], Doubt]:
        found: dict[Mapper[Any], Doubt] = {}
        for stated in some:
            known = found.get(stated.mapper)
            if known is None:
                written = places_of(self.sent[start : stated.sent])
                found[stated.mapper] = Doubt(stated.held, written, stated.adds)
            elif known.adds and not stated.adds:
                found[stated.mapper] = Doubt(known.held, known.written)
        return found

    def before(self, start: Point, end: Point) -> PriorVersions:
        """Return the versions, and doubts, before the rows that were written between two points."""
        if self._before is None or self._before[:2] != (start, end):
            versions = self.versions_before(start, end)
            doubts = self._doubts(start[0], self.stated[start[2] : end[2]])
            self._before = start, end, PriorVersions(versions, doubts)
        return self._before[2]

    def versions_before(
        self, start: Point, end: Point, more: Iterable[Write] = ()
    ) -> dict[Place, Any]:
        """Return the versions before the writes, and before statements that moved the row first."""
        found: dict[Place, Any] = {}
        at = start[0]
        for moved in self.moved[start[1] : end[1]]:
            if moved.sent > at:
                expected_versions(self.sent[at : moved.sent], found)
                at = moved.sent
            found.setdefault(moved.place, moved.before)
        return expected_versions([*self.sent[at : end[0]], *more], found)

    def take_back(self, savepoint: SessionTransaction | None) -> list[Write]:
        """Return the writes that are rolled back now, with the savepoint or the transaction."""
        if savepoint is None:
            self._move_back(0)
            return [*self.sent, *self.undone]
        return self.take_back_to(self._savepoints.get(savepoint, self.now()))

    def take_back_to(self, point: Point) -> list[Write]:
        """Return the writes since ``point``, which are undone."""
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
        """Forget the writes, which are stored."""
        self.decided = self._forgotten = True
        self.sent, self._counted, self._before, self.sides = [], 0, None, None
        if self._flushed or self._savepoints or self.departed or self.undone or self.undone_before:
            self._flushed, self._savepoints, self.departed = set(), {}, []
            self.undone, self.undone_before = [], {}
        if self.moved or self.stated or self.compared:
            self.moved, self.stated, self.compared = [], [], frozenset()
        if self.added_to:
            self.added_to = set()
        if self.overtaken:
            self.overtaken = ()
