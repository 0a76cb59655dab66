"""The search through all orders that can differ: depth first, and each order from its beginning.

``reset``, the steps of the last order up to a choice, another unit there, and then the same unit as
long as it can go on. A replayed step must be the one of the last time.

Two steps that do not depend on each other are run in one order only. Which choices are due follows
from the steps that have run: source sets (Abdulla, Aronis, Jonsson, Sagonas: Optimal Dynamic
Partial Order Reduction, 2014) and sleep sets (Godefroid 1996). The start of a statement that waits,
and its going on, are two events. The second one belongs to the step that let it go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from optilock.errors import OptilockError
from optilock.testing.exploration.dependence import touches_meet
from optilock.testing.exploration.touches import Way
from optilock.testing.exploration.turns import Order, Step

Prune: TypeAlias = Literal["source", "sleep", "none"]
#: Times that an order is run again where the database chooses which unit gets a lock.
TRIES = 5


class NotDeterministic(OptilockError, AssertionError):
    """The same order gave another step or another result: no order can be judged."""


@dataclass
class Node:
    """A choice: which of the units that stop takes its step."""

    #: The units that stop, and the statements before which they do.
    texts: dict[int, str]
    #: Units whose steps were run from an earlier choice, and have met nothing they depend on.
    asleep: dict[int, Step]
    chosen: int
    #: Units to be chosen, and those that were chosen, with their steps.
    due: set[int] = field(default_factory=set)
    done: dict[int, Step | None] = field(default_factory=dict)
    step: Step | None = None


@dataclass(frozen=True)
class Ran:
    """One order that was run, at its end."""

    order: Order
    #: It was given up, because all that follows has been run.
    cut: bool = False
    #: The database let another unit go on than in the order that was to be repeated.
    strayed: bool = False

    @property
    def letters(self) -> str:
        return "".join(chr(ord("a") + step.unit) for step in self.order.steps)


def dependent(one: Step, other: Step) -> bool:
    """Return whether two steps could differ if they changed places."""
    return bool(one.units & other.units) or touches_meet(one.touches, other.touches)


def locks(step: Step) -> bool:
    """Return whether a step may close a circle of waits."""
    return any(way is Way.LOCKS for way, _ in step.touches)


class Search:
    """All orders, one after the other; each has ended when it is given, and is not rolled back."""

    def __init__(self, begin: Callable[[], Order], prune: Prune) -> None:
        self._begin, self._prune = begin, prune
        self._nodes: list[Node] = []
        self._tries = 0
        #: Choices that the database did not repeat.
        self.unreached = 0
        #: Every order was run, or one that cannot differ from it.
        self.complete = False

    def __iter__(self) -> Iterator[Ran]:
        while not self.complete:
            order = self._begin()
            try:
                ran = self._walk(order)
                yield ran
            finally:
                order.end()
            if ran.strayed and self._tries < TRIES:
                self._tries += 1
                continue
            self.unreached += ran.strayed
            self._tries = 0
            if self._prune == "source" and not ran.strayed:
                self._find_races()
            self.complete = not self._advance()

    def _walk(self, order: Order) -> Ran:
        """Take the steps of the nodes, and go on from there."""
        depth, crowded, strayed = 0, False, False
        while not order.ended:
            texts = {number: order.next_text(number) for number in order.ready}
            if not strayed and depth == len(self._nodes):
                node = self._new_node(texts)
                if node is None:
                    return Ran(order, cut=True)
                self._nodes.append(node)
            if not strayed and self._nodes[depth].texts != texts:
                self._require_chance(crowded, depth, texts, order)
                strayed = True
            waiting = order.waiting
            step = order.take(order.ready[0] if strayed else self._nodes[depth].chosen)
            crowded |= len(waiting) > 1 or (bool(waiting) and locks(step))
            if not strayed:
                self._nodes[depth].step = step
                depth += 1
        if not strayed and depth < len(self._nodes):
            self._require_chance(crowded, depth, {}, order)
            strayed = True
        return Ran(order, strayed=strayed)

    def _require_chance(
        self, crowded: bool, depth: int, texts: dict[int, str], order: Order
    ) -> None:
        """Raise ``NotDeterministic``, unless the database could choose which unit goes on.

        It chooses between two that wait for one lock, and the one that a deadlock ends.
        """
        if crowded:
            return
        raise NotDeterministic(different_step(self._nodes[depth].texts, texts, depth, order))

    def _new_node(self, texts: dict[int, str]) -> Node | None:
        """Return the choice after the last one; None if all that can follow has been run."""
        asleep: dict[int, Step] = {}
        last = self._nodes[-1] if self._nodes else None
        if last is not None and self._prune != "none":
            assert last.step is not None
            before = last.asleep | {n: step for n, step in last.done.items() if step is not None}
            for number, step in before.items():
                if number != last.chosen and not dependent(step, last.step):
                    asleep[number] = step
        awake = [number for number in texts if number not in asleep]
        if not awake:
            return None
        chosen = last.chosen if last is not None and last.chosen in awake else awake[0]
        due = {chosen} if self._prune == "source" else set(texts)
        return Node(texts, asleep, chosen, due)

    def _advance(self) -> bool:
        """Go to the next choice that is due, the deepest first."""
        while self._nodes:
            node = self._nodes[-1]
            node.done[node.chosen] = node.step
            left = sorted(node.due - node.done.keys() - node.asleep.keys())
            if left:
                node.chosen, node.step = left[0], None
                return True
            self._nodes.pop()
        return False

    def _find_races(self) -> None:
        """Let the second unit go first at each place where two steps could change places."""
        steps = [node.step for node in self._nodes if node.step is not None]
        later = _later(steps)
        for second in range(len(steps)):
            for first in range(second):
                if _is_race(steps, later, first, second):
                    self._make_due(steps, later, first, second)

    def _make_due(
        self, steps: Sequence[Step], later: Sequence[set[int]], first: int, second: int
    ) -> None:
        between = [n for n in range(first + 1, second) if n not in later[first]]
        rest: list[int] = [*between, second]
        begins: dict[int, int] = {}
        for number in rest:
            begins.setdefault(steps[number].unit, number)
        first_of = {
            unit
            for unit, number in begins.items()
            if not any(number in later[before] for before in rest if before < number)
        }
        node = self._nodes[first]
        if not first_of & node.due:
            unit = steps[second].unit
            choices = [unit] if unit in first_of else sorted(first_of)
            node.due.add(next((one for one in choices if one in node.texts), node.chosen))


def _later(steps: Sequence[Step]) -> list[set[int]]:
    """Return for each step those that must come after it."""
    later: list[set[int]] = [set() for _ in steps]
    for number in range(len(steps) - 1, -1, -1):
        for other in range(number + 1, len(steps)):
            if other not in later[number] and dependent(steps[number], steps[other]):
                later[number] |= {other} | later[other]
    return later


def _is_race(steps: Sequence[Step], later: Sequence[set[int]], first: int, second: int) -> bool:
    """Return whether the second step could come before the first one, with nothing between."""
    if steps[second].unit in steps[first].units or second not in later[first]:
        return False
    return not any(
        between in later[first] and second in later[between] for between in range(first + 1, second)
    )


def different_step(
    expected: dict[int, str], found: dict[int, str], depth: int, order: Order
) -> str:
    """Return the message of an order that could not be repeated."""
    names = {number: unit.name for number, unit in enumerate(order.units)}

    def listed(texts: dict[int, str]) -> str:
        lines = [f"    {names[n]}: {' '.join(text.split())}" for n, text in sorted(texts.items())]
        return "\n".join(lines) or "    no unit: all have ended"

    return (
        f"The units cannot be put in order: after the same {depth} steps they stopped before other"
        f" statements than in the run before.\n  then:\n{listed(expected)}\n"
        f"  now:\n{listed(found)}\n"
        "They depend on something that reset= does not put back: chance, the clock, the order of a"
        " set, a value that the program keeps, or another program on this database."
    )
