"""The rows on which units conflict: a moving average for each, shared by the process.

::

    memory = Memory()
    memory.conflict(key, Adaptive(), "a write found another version")
    memory.decide(key, Adaptive())          # Decision.LOCK, nearly always

A row without a conflict is not in the memory, and costs nothing. Each conflict moves the row's
average towards 1, each successful optimistic write towards 0, and the average halves with time.
While it is at the threshold or above, the row is *hot*: it is locked when it is read.

A locked row cannot conflict, so a success under a lock is no evidence. Now and then a unit
therefore reads its hot rows without locks, which is a *probe*: the ends of its writes count. Each
probe that conflicts doubles the number of readings to the row's next probe, up to a thousand, and
each other one halves it. The number is drawn at random, so that writers do not probe together. A
unit that has a lock begins no probe: it would wait for that row while others wait for its own.

A conflict on a row that is not hot also counts for its table, by a third. Two of them in a short
time make the table hot: every row that is read by its key is locked, and rows of queries are not. A
hot table is probed like a row, but at most every ``probe`` readings. So a table of a hundred wanted
rows is learned by two conflicts, and a table with a single hot row soon cools.

A unit that locks hot rows when it reads them, and writes others without locks, takes its locks in
no common order, so units of several rows may deadlock. After a deadlock the tables are therefore
*crowded*: units lock all rows that they read of them, until there was no deadlock for some time.
Then all locks are taken in the order in which the program reads.

Programs that read in opposite orders still deadlock. That is detected when two transactions that
deadlocked had locked the same rows in two orders, or by the number of deadlocks. Such rows are
*partners*: a unit that locks one of them first locks the others with it, in the order of their
keys. Units that do not need the others dissolve the partnership.

A key is the database's name, the table's name and the row's primary key. A key without a primary
key is for the rows that queries read, and there is one for all rows that are read by their keys.
There are at most :data:`MOST` keys. The one with the oldest change is forgotten first.
"""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from optilock import events
from optilock.unit.strategies import Adaptive

#: How many rows, and tables, are remembered.
MOST = 10_000
#: How many rows are locked together at most.
PARTNERS = 16
#: Rows become partners after so many deadlocks, even if no two orders were seen: transactions that
#: began before the table was crowded deadlock, too, and do not lock in the order of keys.
DEADLOCKS_OF_PARTNERS = 8
#: Partners are dissolved after so many units that did not need the others.
UNITS_WITHOUT_PARTNERS = 8
#: A kind of unit locks no rows of a table after so many units in a row that wrote none there. One
#: such unit is no sign: it may have found too little in stock.
UNITS_OF_A_READER = 8
#: The share of a conflict that counts for the table, and the share of that for a success: a
#: conflict costs a whole attempt, and a lock little.
OF_TABLE, OF_SUCCESS = 1 / 3, 1 / 4
_PATIENCE = range(4, 1025)
_FORGOTTEN = 0.01
_ANY = (...,)


class Key(NamedTuple):
    """A row, the rows that queries read of a table, or all rows of a table."""

    database: str
    table: str
    identity: tuple[Any, ...] | None = None

    @property
    def any_row(self) -> Key:
        """All rows of the table that are read by their keys."""
        return Key(self.database, self.table, _ANY)

    @property
    def identity_in_events(self) -> tuple[Any, ...] | None:
        """The row's identity in events; () for all rows of a table."""
        return () if self.identity == _ANY else self.identity


class Decision(Enum):
    """How a row is read."""

    #: Like a row without a conflict.
    PLAIN = "plain"
    #: Without a lock, and the end of the write counts.
    WATCHED = "watched"
    #: The same for a hot row, and for all hot rows that the unit reads from here on.
    PROBE = "probe"
    LOCK = "lock"


class Heat:
    """The average of one row, and what else counts for it."""

    __slots__ = (
        "at",
        "average",
        "conflicts",
        "deadlocks",
        "hot",
        "later",
        "left",
        "partners",
        "patience",
        "unneeded",
    )

    def __init__(self, at: float, probe: int = 1) -> None:
        self.average = 0.0
        #: The time of that average.
        self.at = at
        self.conflicts = 0
        self.hot = False
        self.patience = probe
        #: Readings to the next probe.
        self.left = probe
        #: Deadlocks of transactions that wanted it, and the rows that they locked after it.
        self.deadlocks = 0
        self.later: frozenset[Key] = frozenset()
        #: Rows that are locked together with it, and the number of units that did not need that.
        self.partners: frozenset[Any] = frozenset()
        self.unneeded = 0

    def average_at(self, now: float, half_life: float) -> float:
        return self.average * math.pow(0.5, (now - self.at) / half_life)


class Memory:
    """The rows with conflicts."""

    def __init__(
        self,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[int, int], int] = random.randint,
    ) -> None:
        #: Read without a lock; changed under one.
        self.rows: OrderedDict[Key, Heat] = OrderedDict()
        #: Tables over which transactions have deadlocked, by database and name.
        self.crowded: dict[tuple[str, str], Heat] = {}
        #: For each kind of unit and table: its last units in a row that wrote nothing there.
        self._readers: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        #: Names of units inside which other sessions write: they are never locked by learning.
        self.accompanied: set[str | None] = set()
        #: Tables whose rows the database never locks, by database and name.
        self.unlockable: set[tuple[str, str]] = set()
        self._most, self._clock, self._chance = most, clock, chance
        self._changing = Lock()

    def __len__(self) -> int:
        return len(self.rows)

    def forget(self) -> None:
        """Forget all conflicts."""
        with self._changing:
            self.rows.clear()
            self.crowded.clear()
            self._readers.clear()
            self.accompanied.clear()
            self.unlockable.clear()

    def decide(
        self, key: Key, given: Adaptive, *, may_probe: Callable[[], bool] = lambda: True
    ) -> Decision:
        """Return how the row is read now, by a unit that may probe or has a lock already."""
        if self.unlockable and key[:2] in self.unlockable:
            return Decision.PLAIN
        if self.crowded and self._is_crowded(key, given):
            return Decision.LOCK
        found = Decision.PLAIN
        if key.identity:
            any_row: Any = (key.database, key.table, _ANY)  # equal to key.any_row
            heat = self.rows.get(any_row)
            if heat is not None:
                found = self._decide(key.any_row, heat, given, may_probe)
                if found is Decision.LOCK:
                    return found
        heat = self.rows.get(key)
        if heat is None:
            return found
        of_row = self._decide(key, heat, given, may_probe)
        return found if found is Decision.PROBE and of_row is not Decision.LOCK else of_row

    def _decide(
        self, key: Key, heat: Heat, given: Adaptive, may_probe: Callable[[], bool]
    ) -> Decision:
        average = heat.average_at(self._clock(), given.seconds)
        if average < given.threshold:
            if heat.hot:
                self._cool(key, heat, average, "there was no conflict on it for some time")
            return Decision.WATCHED
        heat.left -= 1
        if heat.left > 0 or not may_probe():
            return Decision.LOCK
        heat.left = self._chance(1, 2 * heat.patience)
        return Decision.PROBE

    def _is_crowded(self, key: Key, given: Adaptive) -> bool:
        """Return whether a unit with these limits locks every row that it reads of the table."""
        crowd = self.crowded.get(key[:2])
        if crowd is None:
            return False
        seconds = self._clock() - crowd.at
        if seconds <= given.crowd:
            return True
        if crowd.hot:
            average = crowd.average_at(crowd.at + seconds, given.seconds)
            why = "no transactions that wanted its rows have deadlocked"
            self._cool(Key(*key[:2], ()), crowd, average, why)
        return False

    def conflict(self, key: Key, given: Adaptive, why: str) -> None:
        """Count a unit that read the row, which another transaction then wrote first."""
        before = self.rows.get(key)
        was_hot = before is not None and before.hot
        self._warm(key, given, given.weight, why)
        if key.identity and not was_hot:
            so = "several of its rows have conflicted that were not hot"
            self._warm(key.any_row, given, given.weight * OF_TABLE, so)

    def _warm(self, key: Key, given: Adaptive, weight: float, why: str) -> None:
        with self._changing:
            now = self._clock()
            heat = self.rows.get(key)
            if heat is None:
                heat = self.rows[key] = Heat(now, given.probe)
                if len(self.rows) > self._most:
                    self.rows.popitem(last=False)
            else:
                self.rows.move_to_end(key)
            average = heat.average_at(now, given.seconds)
            heat.average, heat.at = average + weight * (1 - average), now
            heat.conflicts += 1
            if heat.hot:
                heat.patience = min(2 * heat.patience, _PATIENCE[-1])
            heat.left = max(heat.left, self._chance(1, 2 * heat.patience))
            warmed = not heat.hot and heat.average >= given.threshold
            heat.hot = heat.hot or warmed
        if warmed:
            what = heat.average, heat.conflicts
            events.emit(lambda: events.Hot(key.table, key.identity_in_events, *what, because=why))

    def success(self, key: Key, given: Adaptive) -> None:
        """Count a unit that read the row without a lock, and wrote it."""
        self._succeeded(key, given, given.weight, _PATIENCE[0])
        if key.identity:
            weight = given.weight * OF_TABLE * OF_SUCCESS
            self._succeeded(key.any_row, given, weight, given.probe)

    def _succeeded(self, key: Key, given: Adaptive, weight: float, patience: int) -> None:
        with self._changing:
            heat = self.rows.get(key)
            if heat is None:
                return
            now = self._clock()
            heat.average = heat.average_at(now, given.seconds)
            heat.average, heat.at = heat.average * (1 - weight), now
            heat.patience = max(heat.patience // 2, patience)
            heat.left = min(heat.left, 2 * heat.patience)
            if heat.average < _FORGOTTEN:
                self.rows.pop(key, None)
            else:
                self.rows.move_to_end(key)
            cooled = heat.hot and heat.average < given.threshold
        if cooled:
            self._cool(key, heat, heat.average, "it was written without a lock or a conflict")

    def _cool(self, key: Key, heat: Heat, average: float, why: str) -> None:
        heat.hot = False
        what = average, heat.conflicts
        events.emit(lambda: events.Cold(key.table, key.identity_in_events, *what, because=why))

    # -- units that only read ----------------------------------------------------------------------

    def only_reads(self, unit: str | None, key: Key) -> bool:
        """Return whether the last units of this name wrote no row of the table."""
        return self._readers.get((unit or "", key[0], key[1]), 0) >= UNITS_OF_A_READER

    @property
    def knows_readers(self) -> bool:
        """Whether a unit has read hot rows of some table, and written none there."""
        return bool(self._readers)

    def note_use(self, unit: str | None, key: Key, *, writes: bool, locked: bool = True) -> None:
        """Note whether a unit of this name that has read hot rows of the table wrote there.

        One that did without their locks is a reader at once.
        """
        if writes:
            if (unit or "", key.database, key.table) in self._readers:
                self._note_reader(unit or "", key, 0)
        elif unit is not None:
            self._note_reader(unit, key, 1 if locked else UNITS_OF_A_READER)

    def note_refused(self, unit: str | None, key: Key, *, always: bool) -> None:
        """Note that a unit of this name may not lock rows of the table, or that no unit can."""
        if always and key.identity:
            self.unlockable.add((key.database, key.table))
        self._note_reader(unit or "", key, UNITS_OF_A_READER)

    def _note_reader(self, unit: str, key: Key, more: int) -> None:
        with self._changing:
            before = self._readers.pop((unit, *key[:2]), 0)
            if more:
                self._readers[unit, *key[:2]] = min(before + more, UNITS_OF_A_READER)
                if len(self._readers) > self._most:
                    self._readers.popitem(last=False)

    # -- deadlocks ---------------------------------------------------------------------------------

    def partners(self, key: Key) -> frozenset[Any]:
        """Return the rows to lock with this one, which is among them if there are any."""
        heat = self.rows.get(key)
        return frozenset() if heat is None else heat.partners

    def deadlock(self, places: Mapping[Key, Any], order: Sequence[Key], given: Adaptive) -> None:
        """Count a deadlock of a transaction that had locked some of these rows in this order.

        The values of ``places`` are those that :meth:`partners` returns.
        """
        for key in places:
            heat = self.rows.get(key)
            if heat is not None and not heat.partners and not self._is_crowded(key, given):
                heat.deadlocks, heat.later = 0, frozenset()  # those of an earlier crowd
            self._warm(key, given, given.weight, "transactions that wanted it have deadlocked")
        self.crowd(places, given, "transactions that wanted its rows have deadlocked")
        heats = {key: heat for key in places if (heat := self.rows.get(key)) is not None}
        first = [key for key in order if key in heats][: PARTNERS + 1]
        opposite = _in_two_orders({key: heats[key] for key in first})
        for heat in heats.values():
            heat.deadlocks += 1
            if opposite or heat.deadlocks >= DEADLOCKS_OF_PARTNERS:
                heat.partners, heat.unneeded = _some(heat.partners | {*places.values()}), 0

    def crowd(self, keys: Iterable[Key], given: Adaptive, why: str) -> None:
        """Lock every row that units read of these tables from here on."""
        for table in {key[:2] for key in keys}:
            crowd, is_new = self._crowd(table)
            if is_new:
                what = table[1], (), crowd.average, crowd.conflicts
                events.emit(partial(events.Hot, *what, because=why))

    def _crowd(self, table: tuple[str, str]) -> tuple[Heat, bool]:
        with self._changing:
            crowd = self.crowded.setdefault(table, Heat(0.0))
            if len(self.crowded) > self._most:
                del self.crowded[next(iter(self.crowded))]
            was_hot, crowd.hot = crowd.hot, True
            crowd.average, crowd.at = 1.0, self._clock()
            crowd.conflicts += 1
        return crowd, not was_hot

    def dissolve_partners(self, key: Key) -> None:
        """Count a unit that locked the row and did not need all of its partners."""
        heat = self.rows.get(key)
        if heat is not None and heat.partners:
            heat.unneeded += 1
            if heat.unneeded >= UNITS_WITHOUT_PARTNERS:
                heat.deadlocks, heat.unneeded = 0, 0
                heat.later = heat.partners = frozenset()


def _in_two_orders(order: Mapping[Key, Heat]) -> bool:
    """Return whether an earlier transaction locked two of these rows in the other order.

    The order of this one is kept.
    """
    opposite, keys = False, list(order)
    for number, key in enumerate(keys):
        later = keys[number + 1 :]
        opposite = opposite or any(key in order[other].later for other in later)
        order[key].later = _some(order[key].later | {*later})
    return opposite


def _some(rows: frozenset[Any]) -> frozenset[Any]:
    return rows if len(rows) <= PARTNERS else frozenset([*rows][:PARTNERS])


#: The conflicts of all units of the process.
MEMORY = Memory()


def forget_hot_rows() -> None:
    """Forget all conflicts of the process: no row is hot. For tests."""
    MEMORY.forget()
