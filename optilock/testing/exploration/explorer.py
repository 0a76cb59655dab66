"""One exploration: its orders run and judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from optilock.errors import ConfigurationError
from optilock.testing.exploration.judgement import (
    Outcome,
    Serial,
    anomaly_of,
    is_serial,
    outcome_of,
)
from optilock.testing.exploration.report import Exploration, Failure, not_serializable
from optilock.testing.exploration.script import script, script_length
from optilock.testing.exploration.search import NotDeterministic, Prune, Ran, Search
from optilock.testing.exploration.stage import Stage
from optilock.testing.exploration.stops import Stops
from optilock.testing.exploration.turns import Order
from optilock.testing.exploration.units import Unit, names_of, work_of


class Explorer:
    """The units, their database, and the outcomes of serial orders."""

    def __init__(self, units: Sequence[Unit], stage: Stage, stops: Stops, *, values: bool) -> None:
        self.names = names_of(units)
        self._units = units
        self._stage, self._stops, self._values = stage, stops, values
        self.serial: list[Serial] = []
        self._errors: dict[str, BaseException] = {}

    # -- orders ------------------------------------------------------------------------------------

    def _order(self, units: Sequence[int]) -> Order:
        """Put the rows back, and return an order of these units, before any has begun."""
        self._stage.reset()
        works = [(self.names[n], work_of(self._units[n])) for n in units]
        ask = None if self._stage.database.watching.refuses_when_busy else self._stage.ask
        return Order(works, ask, self._stops.check)

    def begin(self) -> Order:
        """Put the rows back, and let all units go to their first stop."""
        order = self._order(range(len(self._units)))
        try:
            order.begin(range(len(self._units)))
        except BaseException:
            order.end()
            raise
        return order

    def _alone(self, units: Sequence[int]) -> Outcome:
        """Run these units one after the other, each to its end."""
        order = self._order(units)
        try:
            for number in range(len(units)):
                order.begin([number])
                while order.ready:
                    order.take(order.ready[0])
        finally:
            order.end()
        self._errors |= {unit.name: unit.error for unit in order.units if unit.error is not None}
        return self._outcome(order)

    def _outcome(self, order: Order) -> Outcome:
        return outcome_of(order.units, self._stage.rows(), values=self._values)

    # -- serial orders -----------------------------------------------------------------------------

    def run_serial(self) -> None:
        """Run every serial order of every choice of units, and one of them twice.

        Raises:
            NotDeterministic: it did not leave the same twice.
        """
        everyone = range(len(self._units))
        self._rehearse(everyone)
        for count in range(len(everyone) + 1):
            for units in permutations(everyone, count):
                names = tuple(self.names[number] for number in units)
                self.serial.append(Serial(names, self._alone(units)))
        again = Serial(self.serial[-1].names, self._alone(units))
        if again != self.serial[-1]:
            raise NotDeterministic(_different(self.serial[-1], again))
        self._require_results()
        broken = self._stage.broken()
        if broken is not None:
            raise ConfigurationError(
                f"invariant= does not hold after {', then '.join(again.names)}, one after the"
                f" other: {broken}. That is no race: correct the units, reset= or the invariant."
            )

    def _require_results(self) -> None:
        """Refuse a unit that fails even alone: it would be judged by nothing but its error."""
        for name in self.names:
            values = {dict(one.outcome.values)[name] for one in self.serial if name in one.names}
            if all(value.startswith("raised") for value in values):
                raise ConfigurationError(
                    f"{name} ends with an error in every serial order"
                    f" ({', '.join(sorted(values))}). Correct it, or reset=. No order was judged."
                ) from self._errors.get(name)

    def _rehearse(self, everyone: Sequence[int]) -> None:
        """Find out the tables, and the keys that ``reset`` stores."""
        order = self._order(everyone)
        try:
            for number in everyone:
                order.begin([number])
                while order.ready:
                    order.take(order.ready[0])
        finally:
            order.end()
        self._stage.reset()
        self._stops.known = self._stage.choose_tables(self._stops.tables.values())

    # -- judgement ---------------------------------------------------------------------------------

    def search(self, prune: Prune, limit: int) -> Exploration:
        """Run all orders that can differ, at most ``limit``."""
        began = time.monotonic()
        search = Search(self.begin, prune)
        found = Exploration(units=tuple(self.names), prune=prune, serial=tuple(self.serial))
        outcomes: set[Outcome] = set()
        failures: list[Failure] = []
        for ran in search:
            found = self._counted(found, ran, outcomes, failures)
            if found.orders + found.cut >= limit:
                break
        failures.sort(key=lambda one: (one.switches, one.steps, one.order))
        return replace(
            found,
            outcomes=frozenset(outcomes),
            failures=tuple(failures),
            deadlocks=self._stops.deadlocks,
            unreached=search.unreached,
            complete=search.complete and not search.unreached,
            seconds=time.monotonic() - began,
        )

    def _counted(
        self, found: Exploration, ran: Ran, outcomes: set[Outcome], failures: list[Failure]
    ) -> Exploration:
        if ran.cut:
            return replace(found, cut=found.cut + 1)
        outcome, failure = self.judge(ran)
        outcomes.add(outcome)
        failures += [] if failure is None else [failure]
        return replace(
            found,
            orders=found.orders + 1,
            gave_up=found.gave_up + bool(outcome.gave_up),
            waits=found.waits + sum(step.waited for step in ran.order.steps),
        )

    def replay(self, letters: str) -> Outcome:
        """Run one order; raise ``NotSerializable`` if it fails."""
        order = self.begin()
        try:
            for number, letter in enumerate(letters):
                unit = ord(letter) - ord("a")
                if unit not in order.ready:
                    raise ConfigurationError(self._cannot_take(letters, number, order))
                order.take(unit)
            while not order.ended:
                order.take(order.ready[0])
            outcome, failure = self.judge(Ran(order))
        finally:
            order.end()
        if failure is not None:
            raise not_serializable(self._one(outcome, failure), failure)
        return outcome

    def _one(self, outcome: Outcome, failure: Failure) -> Exploration:
        return Exploration(
            units=tuple(self.names),
            orders=1,
            outcomes=frozenset({outcome}),
            failures=(failure,),
            serial=tuple(self.serial),
        )

    def _cannot_take(self, letters: str, number: int, order: Order) -> str:
        able = [f"{chr(ord('a') + one)} ({self.names[one]})" for one in order.ready]
        return (
            f"replay({letters!r}): step {number + 1} is {letters[number]!r}, and only"
            f" {' or '.join(able) or 'no unit'} can take a step there. The order is one of other"
            " units, of other rows in reset=, or of another database."
        )

    def judge(self, ran: Ran) -> tuple[Outcome, Failure | None]:
        """Return what an order has left, and how it fails."""
        outcome = self._outcome(ran.order)
        broken = self._stage.broken()
        fails = not is_serial(outcome, self.serial)
        if broken is None and not fails:
            return outcome, None
        steps = ran.order.steps
        return outcome, Failure(
            order=ran.letters,
            anomaly=anomaly_of(steps, outcome) if fails else "broken invariant",
            broken=None if fails else broken,
            outcome=outcome,
            script=script(steps, self.names),
            steps=script_length(steps),
        )


def _different(one: Serial, again: Serial) -> str:
    for (table, rows), (_, others) in zip(one.outcome.rows, again.outcome.rows, strict=True):
        if rows != others:
            what = f"the rows of {table}: {', '.join(rows)} and then {', '.join(others)}"
            break
    else:
        what = f"values: {dict(one.outcome.values)} and then {dict(again.outcome.values)}"
    return (
        f"{', then '.join(one.names)}, one after the other, left {what}. They depend on chance, on"
        " the clock, or on something that reset= does not put back. Name columns that may differ in"
        " ignoring=, or pass values=False. Nothing was judged."
    )
