"""Which rows are hot: a moving average of conflicts for each row, shared by the process.

::

    memory = Memory()
    memory.conflict(key, Adaptive(), "a write found another version")
    memory.decide(key, Adaptive())          # Decision.LOCK, nearly always

A row that nobody has conflicted on is not in the memory, and costs nothing. Each conflict moves the
average of its row towards 1, each write of an optimistic reading without one towards 0; and the
average halves with time. While it is at the threshold or above, the row is *hot*: it is locked when
it is read.

A row that is locked cannot conflict, so success under a lock says nothing. Now and then a hot row
is read without a lock, which is a *probe*: how this write ends counts. Each probe that conflicts
doubles the number of readings to the next one, up to a thousand, and each one that does not halves
it. The number is drawn at random, so that writers do not probe together.

A conflict on a row that is not hot counts for its table, too, by a third. Two of them soon after
each other make the table hot: every row of it that is asked for by its key is locked, and what
queries read is not. A hot table is probed as a row is, but not more often than every ``probe``
readings. So a table of a hundred rows that all are wanted is learned by two conflicts, and one with
a single hot row is soon left alone.

A unit that locks hot rows when it reads them, and writes others without, takes its locks in no
order that others keep, so units of several rows may deadlock. Hence after a deadlock the tables are
*crowded*: units lock whatever they read of them, until nothing is heard of deadlocks for some time.
Then all locks are taken in the order in which the program reads.

Where programs read in opposite orders, they go on to deadlock. This is known when two transactions
that have deadlocked had locked the same rows in two orders, or by the number of deadlocks. Such
rows are *partners*: who locks one of them first locks the others with it, in the order of their
keys. Units that do not need the others dissolve that again.

A key is the name of the database, that of the table, and the row's primary key; without a primary
key it stands for what queries read of the table, and there is one for whatever is asked for by its
key. There are at most :data:`MOST` of them, and who was changed longest ago is forgotten first.
"""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from optilock import events
from optilock.errors import ConfigurationError

__all__ = ["MOST", "Adaptive", "Decision", "Key", "Memory"]

#: How many rows, and tables, are remembered.
MOST = 10_000
#: How many rows are locked together at most.
PARTNERS = 16
#: After so many deadlocks, if nobody has seen them locked in two orders: transactions that have
#: not yet heard of the crowd deadlock, too, and the order of keys is not theirs.
TOGETHER = 8
#: Until so many units did not need that.
ALONE = 8
#: Of what a conflict counts for its row, it counts so much for the table; and a success so much of
#: that: a conflict costs a whole attempt, and a lock little.
OF_TABLE, OF_SUCCESS = 1 / 3, 1 / 4
_PATIENCE = range(4, 1025)
_FORGOTTEN = 0.01
_ANY = (...,)


class Key(NamedTuple):
    """A row, what queries read of a table, or all of it."""

    database: str
    table: str
    identity: tuple[Any, ...] | None = None

    @property
    def any_row(self) -> Key:
        """Whatever row of the table is asked for by its key."""
        return Key(self.database, self.table, _ANY)

    @property
    def said(self) -> tuple[Any, ...] | None:
        """The row, as events say it; no row of its own has a key without values."""
        return () if self.identity == _ANY else self.identity


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """When ``strategy="adaptive"`` takes a row for hot.

    ``threshold``: the average of conflicts from which on a row is locked, more than 0, up to 1.
    ``weight``: how much one write counts in the average, more than 0, up to 1.
    ``half_life``: seconds or timedelta after which the average has halved by itself.
    ``probe``: how many readings with a lock there are to the first one without, 1 or more.

    Raises ``ConfigurationError`` for anything else.
    """

    threshold: float = 0.1
    weight: float = 0.2
    half_life: float | timedelta = field(default=30.0, compare=False)
    probe: int = 32
    #: ``half_life`` in seconds.
    seconds: float = field(init=False, repr=False)
    #: For how many seconds after a deadlock its tables are crowded.
    crowd: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("threshold", "weight"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= 1:
                raise ConfigurationError(
                    f"Adaptive({name}={value!r}) cannot work: write a number above 0, and 1 at"
                    " most."
                )
        seconds = self.half_life
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not _is_number(seconds) or seconds <= 0:
            raise ConfigurationError(
                f"Adaptive(half_life={self.half_life!r}) cannot work: write seconds, more than 0,"
                " or a timedelta."
            )
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "crowd", seconds * math.log2(1 / self.threshold))
        if not isinstance(self.probe, int) or isinstance(self.probe, bool) or self.probe < 1:
            raise ConfigurationError(
                f"Adaptive(probe={self.probe!r}) cannot work: write a number of readings, 1 or"
                " more."
            )


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


class Decision(Enum):
    """How a row is read."""

    #: As a row of which nothing is known.
    PLAIN = "plain"
    #: Without a lock, and how the write ends counts.
    WATCHED = "watched"
    LOCK = "lock"


class Heat:
    """What is known of one row."""

    __slots__ = (
        "alone",
        "at",
        "average",
        "conflicts",
        "deadlocks",
        "hot",
        "later",
        "left",
        "partners",
        "patience",
    )

    def __init__(self, at: float, probe: int = 1) -> None:
        self.average = 0.0
        #: When that was so.
        self.at = at
        self.conflicts = 0
        self.hot = False
        self.patience = probe
        #: Readings to the next probe.
        self.left = probe
        #: How often transactions that wanted it have deadlocked, and what they locked after it.
        self.deadlocks = 0
        self.later: frozenset[Key] = frozenset()
        #: Rows that are locked together with it, and how many units did not need that.
        self.partners: frozenset[Any] = frozenset()
        self.alone = 0

    def average_at(self, now: float, half_life: float) -> float:
        return self.average * math.pow(0.5, (now - self.at) / half_life)


class Memory:
    """The rows that somebody has conflicted on."""

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
        self._most, self._clock, self._chance = most, clock, chance
        self._changing = Lock()

    def __len__(self) -> int:
        return len(self.rows)

    def forget(self) -> None:
        """All rows are as if nobody had conflicted on them."""
        with self._changing:
            self.rows.clear()
            self.crowded.clear()

    def decide(self, key: Key, given: Adaptive) -> Decision:
        """How the row is to be read now."""
        if self.crowded and self._is_crowded(key, given):
            return Decision.LOCK
        of_table = self._decide(key.any_row, given) if key.identity else Decision.PLAIN
        if of_table is Decision.LOCK:
            return of_table
        of_row = self._decide(key, given)
        return of_table if of_row is Decision.PLAIN else of_row

    def _decide(self, key: Key, given: Adaptive) -> Decision:
        heat = self.rows.get(key)
        if heat is None:
            return Decision.PLAIN
        average = heat.average_at(self._clock(), given.seconds)
        if average < given.threshold:
            if heat.hot:
                self._cool(key, heat, average, "nobody has conflicted on it for some time")
            return Decision.WATCHED
        heat.left -= 1
        if heat.left > 0:
            return Decision.LOCK
        heat.left = self._chance(1, 2 * heat.patience)
        return Decision.WATCHED

    def _is_crowded(self, key: Key, given: Adaptive) -> bool:
        """Is every row of the table locked that a unit with these limits reads?"""
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
        """A unit has read the row, and somebody else has written it first."""
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
            events.emit(lambda: events.Hot(key.table, key.said, *what, because=why))

    def success(self, key: Key, given: Adaptive) -> None:
        """A unit has read the row without a lock, and written it."""
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
        events.emit(lambda: events.Cold(key.table, key.said, *what, because=why))

    # -- deadlocks ---------------------------------------------------------------------------------

    def partners(self, key: Key) -> frozenset[Any]:
        """What is to be locked with the row; the row itself is among it, if there is any."""
        heat = self.rows.get(key)
        return frozenset() if heat is None else heat.partners

    def deadlock(self, places: Mapping[Key, Any], order: Sequence[Key], given: Adaptive) -> None:
        """A transaction has deadlocked that wanted these rows, and had locked some in this order.

        The values of ``places`` are what :meth:`partners` gives.
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
            if opposite or heat.deadlocks >= TOGETHER:
                heat.partners, heat.alone = _some(heat.partners | {*places.values()}), 0

    def crowd(self, keys: Iterable[Key], given: Adaptive, why: str) -> None:
        """From here on every row of these tables is locked that is read."""
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

    def alone(self, key: Key) -> None:
        """A unit has locked the row, and did not need all that was locked together with it."""
        heat = self.rows.get(key)
        if heat is not None and heat.partners:
            heat.alone += 1
            if heat.alone >= ALONE:
                heat.deadlocks, heat.alone = 0, 0
                heat.later = heat.partners = frozenset()


def _in_two_orders(order: Mapping[Key, Heat]) -> bool:
    """Had an earlier transaction locked two of these rows the other way round? Remembers this."""
    opposite, keys = False, list(order)
    for number, key in enumerate(keys):
        later = keys[number + 1 :]
        opposite = opposite or any(key in order[other].later for other in later)
        order[key].later = _some(order[key].later | {*later})
    return opposite


def _some(rows: frozenset[Any]) -> frozenset[Any]:
    return rows if len(rows) <= PARTNERS else frozenset([*rows][:PARTNERS])
