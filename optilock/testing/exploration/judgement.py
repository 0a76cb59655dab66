"""Whether what an order leaves is equal to what some serial order leaves, and the anomaly's name.

The serial orders are run on the same database: every order of every choice of units, each unit
alone. What an order leaves is the rows, and what each unit returned or raised. A unit that ended
with a transient error has given up: the order is compared with the serial orders of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from optilock.dialects.transient import is_transient
from optilock.errors import OptilockError
from optilock.testing.exploration.stage import Rows
from optilock.testing.exploration.touches import Way
from optilock.testing.exploration.turns import Step, Unit
from optilock.testing.exploration.values import shown_value
from optilock.testing.sql_texts import is_write


@dataclass(frozen=True)
class Outcome:
    """The result of one order."""

    rows: Rows
    #: For each unit that ran: its name, and what it returned or raised.
    values: tuple[tuple[str, str], ...]
    #: The names of units that ended with a transient error.
    gave_up: frozenset[str] = frozenset()

    def __str__(self) -> str:
        rows = ", ".join(f"{table}: [{', '.join(found)}]" for table, found in self.rows)
        return f"{rows}  {', '.join(f'{name}: {value}' for name, value in self.values)}"


def outcome_of(units: Iterable[Unit], rows: Rows, *, values: bool) -> Outcome:
    """Return what the units of an order have left."""
    found: list[tuple[str, str]] = []
    gave_up = set()
    for unit in units:
        if unit.error is None:
            found.append((unit.name, shown_value(unit.value, unit.name) if values else "returned"))
        elif not isinstance(unit.error, Exception):
            raise unit.error
        elif is_transient(unit.error):
            gave_up.add(unit.name)
            found.append((unit.name, f"gave up ({type(unit.error).__name__})"))
        else:
            found.append((unit.name, _error(unit.error)))
    return Outcome(rows, tuple(sorted(found)), frozenset(gave_up))


def _error(error: Exception) -> str:
    """Without the text of the driver's errors, which names rows and times."""
    name = type(error).__name__
    if isinstance(error, (DBAPIError, OptilockError)):
        return f"raised {name}"
    return f"raised {name}({', '.join(map(repr, error.args))})"


@dataclass(frozen=True)
class Serial:
    """A serial order, and what it leaves."""

    names: tuple[str, ...]
    outcome: Outcome


def is_serial(outcome: Outcome, serial: Sequence[Serial]) -> bool:
    """Return whether a serial order leaves the same."""
    kept = {name: value for name, value in outcome.values if name not in outcome.gave_up}
    for one in serial:
        same = {n: value for n, value in one.outcome.values if n not in one.outcome.gave_up}
        if same == kept and one.outcome.rows == outcome.rows:
            return True
    return False


# -- the anomaly -----------------------------------------------------------------------------------


def anomaly_of(steps: Sequence[Step], outcome: Outcome) -> str:
    """Return the name of the anomaly in an order of two units, from the rows that they name."""
    units = {step.unit for step in steps}
    if len(units) != 2 or any(value.startswith(("raised", "gave")) for _, value in outcome.values):
        return "not serializable"
    one, other = (_written(steps, unit) for unit in sorted(units))
    if not one or not other:
        return "read skew"
    if any(_same_row(mine, yours) for mine in one for yours in other):
        return "double apply" if _last_adds(steps) else "lost update"
    if any(_is(step, "INSERT") or _is(step, "DELETE") for step in steps):
        return "phantom"
    return "write skew"


def _last_adds(steps: Sequence[Step]) -> bool:
    """Return whether the last UPDATE adds to the stored value, so that it overwrote nothing."""
    last = next((step.text for step in reversed(steps) if _is(step, "UPDATE")), "")
    part = last.partition(" SET ")[2].partition(" WHERE ")[0]
    return any(
        re.search(rf"\b{re.escape(column)}\b.*[-+]", value)
        for column, value in re.findall(r"(\w+)[\"`]?\s*=\s*([^=]*)(?=,|$)", part)
    )


def _is(step: Step, kind: str) -> bool:
    return step.text.lstrip()[:6].upper() == kind


def _same_row(one: tuple[object, object], other: tuple[object, object]) -> bool:
    """Return whether two names are of one row; criteria as text may be any row that has a key."""
    (table, key), (another, other_key) = one, other
    mixed = {type(key), type(other_key)} == {str, tuple}
    if table is None or another is None:
        return True
    return table == another and (key == other_key or mixed)


def _written(steps: Sequence[Step], unit: int) -> set[tuple[object, object]]:
    """Return the rows that the unit's statements change: keys, or else the criteria as text."""
    found: set[tuple[object, object]] = set()
    for number, step in enumerate(steps):
        if step.unit != unit or not is_write(step.text):
            continue
        for way, (table, key) in step.named:
            if way is Way.LOCKS and _is(step, "INSERT"):
                found.add((table, number))  # no other unit has a new row
            elif way is Way.LOCKS:
                found.add((table, key or step.shown.partition(" WHERE ")[2]))
    return found
