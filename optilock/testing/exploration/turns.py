"""Units in threads of their own: one runs at a time, from one stop to the next.

A unit stops before each statement and before each COMMIT and ROLLBACK that others can notice. The
:class:`Order` gives one unit the turn, waits until it stops again, ends, or waits for another
unit's lock, and then asks for the next one.

Waits are asked of the server after some silence, and believed after a second question: the
first answer may be older than the last arrival. A database without such a question refuses a
statement at once, and it is sent again when another unit has moved, first come, first served. If
no unit can go on there, the last one that waits gets its error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from traceback import clear_frames
from typing import Any
from weakref import WeakKeyDictionary

from optilock.testing.exploration.dependence import Transaction
from optilock.testing.exploration.touches import Touch, Way
from optilock.testing.interleave import OutOfStep

#: Seconds without an arrival before the first query for waiting units, and between two queries.
SILENCE = 0.002
#: Seconds in which a unit that waits for no lock must stop again or end.
PATIENCE = 10.0
#: The unit that begins to wait first decides which one a deadlock ends.
WAITS: Touch = (Way.LOCKS, ("the waits", None))
#: Steps that a unit may take in one order.
MOST_STEPS = 300


class State(Enum):
    RUNS = "runs"
    STOPS = "stops"
    WAITS = "waits"
    ENDS = "ends"


@dataclass(eq=False)
class Step:
    """The work of one unit between two stops."""

    unit: int
    #: The statement without its values, or COMMIT or ROLLBACK.
    text: str
    #: The statement as a person reads it.
    shown: str
    touches: list[Touch]
    #: The rows that the statement names: what it touches without what the database adds.
    named: tuple[Touch, ...] = ()
    #: The unit itself, and those that it let go on.
    units: set[int] = field(default_factory=set)
    #: It began to wait for a lock; another step let it go on.
    waited: bool = False
    #: Units that had waited and went on with this step.
    woken: list[int] = field(default_factory=list)
    #: It is COMMIT or ROLLBACK.
    is_end: bool = False

    def __post_init__(self) -> None:
        self.units.add(self.unit)


class Abandoned(BaseException):
    """Ends a unit whose order is given up."""


class Unit:
    """One unit of work in an order, and the thread that it runs in."""

    def __init__(self, number: int, name: str, arrivals: SimpleQueue[Unit]) -> None:
        self.number, self.name = number, name
        self.state = State.RUNS
        #: The step at whose begin it stands, or that it takes.
        self.step: Step | None = None
        self.taken = 0
        #: The number on the server of the connection that it calls, while it does.
        self.calls: int | None = None
        self.commits = False
        #: What its statement has shown or let go: it failed, or it committed itself.
        self.let_go: list[Touch] = []
        self.abandoned = False
        #: Connections that the pool gave to it, and that SQLAlchemy has not wrapped.
        self.unwrapped = 0
        self.transactions: WeakKeyDictionary[Any, Transaction] = WeakKeyDictionary()
        self.value: Any = None
        self.error: BaseException | None = None
        self._refused = False
        self._arrivals = arrivals
        self._turn = threading.Semaphore(0)

    def start(self, work: Callable[[], Any]) -> None:
        # A daemon: a unit that never ends must not keep the program from ending.
        name = f"explore-{self.name}"
        threading.Thread(target=self._live, args=(work,), name=name, daemon=True).start()

    def _live(self, work: Callable[[], Any]) -> None:
        RUNNING.unit = self
        try:
            self.value = work()
        except BaseException as error:
            self.error = error
            clear_frames(error.__traceback__)  # or they would keep its sessions open
        finally:
            RUNNING.unit = None
            self._arrive(State.ENDS)

    # -- called in the unit's own thread -----------------------------------------------------------

    def stop(self, step: Step, number: int | None) -> None:
        """Stop before a step until it is this unit's turn."""
        if self.abandoned:
            raise Abandoned
        self.step, self.calls = step, None
        self._arrive(State.STOPS)
        self._await_turn()
        self.calls, self.commits = number, step.is_end

    def wait(self) -> bool:
        """Wait for another unit to move; False if the error of the database is to come out."""
        if self.abandoned or self._refused:
            return False
        self._arrive(State.WAITS)
        self._await_turn()
        return not self._refused

    def _await_turn(self) -> None:
        self._turn.acquire()
        if self.abandoned:
            raise Abandoned

    def _arrive(self, state: State) -> None:
        self.state = state
        self._arrivals.put(self)

    # -- called by the order -----------------------------------------------------------------------

    def go(self, *, refused: bool = False) -> None:
        self.state, self._refused = State.RUNS, refused
        self._turn.release()


class _Running(threading.local):
    unit: Unit | None = None


#: The unit that runs in this thread.
RUNNING = _Running()

#: Returns which of the connections wait for a lock; None if there is no answer.
Ask = Callable[[Sequence[int]], frozenset[int] | None]


def _concerns_waits(step: Step) -> bool:
    """Return whether it may have let another unit go on, or closed a circle of waits."""
    return any(way is not Way.READS for way, _ in step.touches)


class Order:
    """One order of the units' steps.

    ``ask`` is None where a busy database refuses at once. ``require`` raises an error if a unit did
    what cannot be put in order.
    """

    def __init__(
        self,
        works: Sequence[tuple[str, Callable[[], Any]]],
        ask: Ask | None,
        require: Callable[[], None],
    ) -> None:
        self._arrivals: SimpleQueue[Unit] = SimpleQueue()
        self.units = [Unit(n, name, self._arrivals) for n, (name, _) in enumerate(works)]
        self._works = [work for _, work in works]
        self._ask, self._require = ask, require
        self.steps: list[Step] = []
        self._started: list[Unit] = []
        #: Units that wait for a lock, first come, first served, and the steps that they are in.
        self._queue: dict[Unit, Step] = {}

    def begin(self, numbers: Sequence[int]) -> None:
        """Start these units; each goes to its first stop."""
        for number in numbers:
            unit = self.units[number]
            self._started.append(unit)
            unit.start(self._works[number])
            self._settle({unit})
            self._require()

    def end(self) -> None:
        """Roll back what has not ended."""
        for unit in self.units:
            unit.abandoned = True
        for unit in self._started:
            if unit.state is State.STOPS or (unit.state is State.WAITS and self._ask is None):
                unit.go()
        deadline = time.monotonic() + PATIENCE
        while any(unit.state is not State.ENDS for unit in self._started):
            try:
                self._arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return

    @property
    def ready(self) -> tuple[int, ...]:
        """The units at a stop."""
        return tuple(unit.number for unit in self.units if unit.state is State.STOPS)

    @property
    def ended(self) -> bool:
        return all(unit.state is State.ENDS for unit in self.units)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The units that wait for a lock."""
        return tuple(unit.number for unit in self._queue)

    def next_text(self, number: int) -> str:
        """Return the statement before which a unit stops, as a replay must find it."""
        step = self.units[number].step
        assert step is not None
        return step.text

    def take(self, number: int) -> Step:
        """Let a unit take its step, and wait until every unit stops, waits or has ended."""
        unit = self.units[number]
        step = unit.step
        assert step is not None
        self._count(unit)
        self.steps.append(step)
        unit.go()
        queue = dict(self._queue)
        self._settle({unit})
        self._collect(unit, step)
        if self._ask is None:
            self._send_again(unit)
        elif self._queue and (unit.state is not State.STOPS or _concerns_waits(step)):
            self._settle({*self._queue})
        self._collect(unit, step)
        step.waited = unit in self._queue
        if step.waited:
            step.touches.append(WAITS)
        for other, began in queue.items():
            if other not in self._queue:
                self._note_woken(step, other, began)
        self._require()
        return step

    def _note_woken(self, step: Step, other: Unit, began: Step) -> None:
        """Count the going on of a statement that waited as a part of the step that let it go."""
        step.woken.append(other.number)
        step.units.add(other.number)
        step.touches += began.touches + other.let_go
        other.let_go = []

    def _collect(self, unit: Unit, step: Step) -> None:
        if unit not in self._queue:
            step.touches += unit.let_go
            unit.let_go = []

    def _count(self, unit: Unit) -> None:
        unit.taken += 1
        if unit.taken > MOST_STEPS:
            raise OutOfStep(
                f"{unit.name} has sent {MOST_STEPS} statements and has not ended. A unit must end"
                " by itself: a loop that waits for another unit's change never ends in an order in"
                " which that unit does not run."
            )

    # -- databases that refuse at once -------------------------------------------------------------

    def _send_again(self, moved: Unit) -> None:
        """Let each unit that waits try again; if no unit can go on, refuse the last one."""
        self._try_all(moved)
        while self._queue and not self.ready:
            before = [*self._queue]
            self._try_all(None)
            if [*self._queue] == before:
                last = next((one for one in reversed(before) if not one.commits), before[-1])
                self._queue.pop(last)
                last.go(refused=True)
                self._settle({last})

    def _try_all(self, moved: Unit | None) -> None:
        queue, self._queue = self._queue, {}
        for unit, began in queue.items():
            if unit is not moved:
                unit.go()
                self._settle({unit})
            if unit is moved or unit.state is State.WAITS:
                self._queue[unit] = began

    # -- arrivals ---------------------------------------------------------------------------------

    def _settle(self, due: set[Unit]) -> None:
        """Wait until these units stop, have ended, or are known to wait for a lock."""
        began, sure = time.monotonic(), False
        while due:
            try:
                unit = self._arrivals.get(timeout=SILENCE)
            except Empty:
                waits = self._all_wait(due)
                if waits and sure and self.ready:
                    return self._enqueue(due)
                sure = waits
                if time.monotonic() - began > PATIENCE:
                    raise self._stuck(due, waits) from None
            else:
                sure = False
                due.discard(unit)
                if unit.state is State.WAITS:
                    self._enqueue({unit})
                else:
                    self._queue.pop(unit, None)

    def _enqueue(self, units: set[Unit]) -> None:
        for unit in units:
            unit.state = State.WAITS
            assert unit.step is not None
            self._queue.setdefault(unit, unit.step)

    def _all_wait(self, due: set[Unit]) -> bool:
        numbers = [unit.calls for unit in due if unit.calls is not None]
        if self._ask is None or len(numbers) < len(due):
            return False
        answer = self._ask(numbers)
        return answer is not None and answer.issuperset(numbers)

    def _stuck(self, due: set[Unit], waits: bool) -> OutOfStep:
        names = " and ".join(sorted(unit.name for unit in due))
        last = "; ".join(unit.step.shown for unit in due if unit.step is not None)
        why = (
            "it waits for a lock that no unit holds: end the transaction outside of the exploration"
            if waits
            else "it waits for something that the database does not know: a loop without an end,"
            " another thread, a connection that the pool does not have, or a raw cursor. Let units"
            " end by themselves, and give the pool a connection for each"
        )
        return OutOfStep(
            f"{names} did not go on within {PATIENCE:g} s after {last or 'its beginning'}: {why}."
        )
