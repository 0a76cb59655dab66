"""The rows that a step touches, and the pairs of steps whose order matters.

A step touches rows in one of three ways:

=========  =========================================================================================
``READS``   a plain read
``LOCKS``   a row is written or locked, and other transactions cannot see the change yet
``SHOWS``   COMMIT, ROLLBACK or an error makes the change visible, or lets go of the locks
=========  =========================================================================================

Two steps depend on each other where ``LOCKS`` or ``SHOWS`` meets one of these two, and where
``READS`` meets ``SHOWS``. A plain read and a change that is not visible yet do not meet: the
databases keep older versions of rows for readers.

A row is named by equality with its whole primary key under AND, and only if ``reset`` stores it:
the key of a new row differs from run to run. Everything else is the whole table, and SQL that
cannot be read is everything. A statement that the database applies to more than its rows is wider
(:class:`optilock.dialects.isolation.Reach`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table

from optilock.dialects import Database
from optilock.dialects.isolation import Reach
from optilock.testing.exploration.touches import EVERYTHING, Known, Place, Touch, Way, touches_of

#: Statements at which no unit stops: they neither read rows nor wait.
_QUIET = re.compile(
    r"\s*(SAVEPOINT|RELEASE|SET(?!\s+STATEMENT)|SHOW|PRAGMA|START|RESET|DISCARD"
    r"|BEGIN(?!\s+(IMMEDIATE|EXCLUSIVE|NOT))|SELECT\s+1\s*$)\b",
    re.IGNORECASE,
)
_SAVEPOINT = re.compile(r"\s*SAVEPOINT\s+(\S+)", re.IGNORECASE)
_BACK = re.compile(r"\s*ROLLBACK\s+TO\b(\s+SAVEPOINT\b)?\s*(\S+)", re.IGNORECASE)
_END = re.compile(r"\s*(COMMIT|ROLLBACK|END)\s*;?\s*$", re.IGNORECASE)
_BEGIN_LOCKED = re.compile(r"\s*BEGIN\s+(IMMEDIATE|EXCLUSIVE)\b", re.IGNORECASE)
_LEVEL = re.compile(r"\s*SET\b.*\b(ISOLATION|SNAPSHOT)\b", re.IGNORECASE | re.DOTALL)
_WIDEST = Reach(True, True, True, True, True)
_FILE: Place = ("the file", None)


def touches_meet(ones: Iterable[Touch], others: Sequence[Touch]) -> bool:
    """Return whether two steps could differ if they changed places."""
    return any(
        _meet(way, other) and overlap(place, there)
        for way, place in ones
        for other, there in others
    )


def _meet(way: Way, other: Way) -> bool:
    if Way.READS in (way, other):
        return Way.SHOWS in (way, other)
    return True


def overlap(place: Place, other: Place) -> bool:
    """Return whether two places have a row in common, as far as their names show."""
    (table, key), (another, other_key) = place, other
    if table is None or another is None:
        return True
    return table == another and (key is None or other_key is None or key == other_key)


def is_quiet(text: str) -> bool:
    """Return whether no unit stops before the statement."""
    return _QUIET.match(text) is not None


@dataclass
class Transaction:
    """The part of a unit's work on one connection since its last COMMIT or ROLLBACK."""

    database: Database
    known: Known
    #: What the transaction has locked or changed, in order.
    locked: list[Place] = field(default_factory=list)
    _has_snapshot: bool = False
    _strict: bool = False
    _wide: bool = False
    _savepoints: dict[str, int] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Note what a statement changes at which no unit stops."""
        if (named := _SAVEPOINT.match(text)) is not None:
            self._savepoints[named[1]] = len(self.locked)
        if _LEVEL.match(text):
            self._wide = True

    def statement(
        self, connection: Connection, text: str, context: Any, tables: dict[str, Table]
    ) -> tuple[list[Touch], tuple[Touch, ...]]:
        """Return what a statement touches, and the rows that it names.

        What its transaction holds from then on is noted.
        """
        if (back := _BACK.match(text)) is not None:
            undone = self.locked[self._savepoints.get(back[2], 0) :]
            return [(Way.SHOWS, place) for place in dict.fromkeys(undone)], ()
        if _END.match(text):
            return self.end(), ()
        begins = _BEGIN_LOCKED.match(text) is not None
        named = () if begins else tuple(touches_of(context, text, self.known, tables))
        reach = _WIDEST if self._wide else self.database.isolation.reach(connection)
        found = self._widened([*dict.fromkeys(named)], reach, begins=begins)
        self.locked += [place for way, place in found if way is Way.LOCKS]
        return found, named

    def _widened(self, found: list[Touch], reach: Reach, *, begins: bool) -> list[Touch]:
        if reach.locks_reads:
            found = [(Way.LOCKS, place) for _, place in found]
        if reach.orders_commits:
            found = [(way, (table, None)) for way, (table, _) in found]
            self._strict = True
        elif reach.locks_tables:
            found = [(w, (p[0], None)) if w is Way.LOCKS else (w, p) for w, p in found]
        if reach.keeps_snapshot and not self._has_snapshot and not begins:
            self._has_snapshot = True
            found.append((Way.READS, EVERYTHING))
        writes = begins or any(way is Way.LOCKS for way, _ in found)
        if self.database.locks.one_lock and writes:
            found.append((Way.LOCKS, _FILE))
        elif reach.stops_readers:
            found.append((Way.READS, _FILE))
        return found

    def end(self) -> list[Touch]:
        """Return what COMMIT or ROLLBACK touches, and begin again."""
        ended: list[Touch] = [(Way.SHOWS, place) for place in dict.fromkeys(self.locked)]
        if self._strict and ended:
            ended.append((Way.SHOWS, ("the order of commits", None)))
        self.locked, self._savepoints = [], {}
        self._has_snapshot = self._strict = self._wide = False
        return ended

    def failed(self, *, whole: bool) -> list[Touch]:
        """Return what an error lets go of, at most; ``whole``: a transaction without savepoints."""
        if whole and not self._savepoints:
            return self.end()
        return [(Way.SHOWS, place) for place in dict.fromkeys(self.locked)]
