"""The scenarios of two transactions in every order of their statements that can differ."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from checks.guarantees.outcomes import POSSIBLE, PREVENTED
from checks.guarantees.rows import LEVELS, PROTECTIONS, Level, Protection, fill
from checks.guarantees.scenarios import SCENARIOS
from checks.guarantees.stepping import RolledBack, Run, Scenario, Work
from optilock.testing import explore

__all__ = ["OF_TWO", "PROTECTED", "ended", "orders", "pair_of"]


def _names(scenario: Scenario) -> list[str]:
    return [*dict.fromkeys(step.name for step in scenario.steps)]


def pair_of(scenario: Scenario) -> str:
    """Return the two units: what each transaction does before it commits."""
    return " \u2225 ".join(
        ", ".join(one.shown for one in scenario.steps if one.name == name and one.shown != "COMMIT")
        for name in _names(scenario)
    )


#: The keys of the scenarios of two transactions.
OF_TWO = tuple(key for key, one in SCENARIOS.items() if len(_names(one)) == 2)
#: ``verify_reads`` sends what ``verify`` sends.
PROTECTED = PROTECTIONS[:3]


def orders(scenario: Scenario, engine: Engine, name: str) -> tuple[str, ...]:
    """Explore the scenario's transactions with each protection, at the engine's own level."""
    (level,) = (one for one in LEVELS[name] if one.isolation is None)
    return tuple(ended(scenario, engine, level, protection) for protection in PROTECTED)


def ended(scenario: Scenario, engine: Engine, level: Level, protection: Protection) -> str:
    """Return whether the anomaly happens in some order."""
    made, happened = Run(), []

    def reset() -> None:
        fill(engine, protection.model)
        made.committed.clear()
        made.reads.clear()

    def look(session: Session) -> None:
        found = session.execute(select(protection.model.id, protection.model.value))
        made.stored = {row.id: row.value for row in found}
        happened.append(scenario.happened(made))

    units = [_unit(scenario, name, engine, level, protection, made) for name in _names(scenario)]
    found = explore(
        *units,
        sessions=engine,
        reset=reset,
        tables=[protection.model],
        invariant=look,
        values=False,
    )
    assert found.complete, found.summary
    return POSSIBLE if any(happened) else PREVENTED


def _unit(
    scenario: Scenario,
    name: str,
    engine: Engine,
    level: Level,
    protection: Protection,
    made: Run,
) -> Callable[[], None]:
    """Return one transaction of the scenario as a unit: its own steps, in their order."""
    sessions = level.sessions(engine, protection)

    def unit() -> None:
        with ExitStack() as stack:
            work = Work(stack.enter_context(sessions()), protection, stack)
            made.reads[name] = work.reads
            try:
                for step in scenario.steps:
                    if step.name == name:
                        work.take(step)
            except RolledBack:
                return
        made.committed.add(name)

    unit.__name__ = name
    return unit
