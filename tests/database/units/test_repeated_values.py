"""A later attempt never writes a value once more over a change that its author has not seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from optilock import WouldOverwrite, events, is_transient, unit_of_work
from tests.repeated_cases import (
    CASES,
    MODES,
    RUNS,
    Author,
    Booking,
    Case,
    Loose,
    Paper,
    Stock,
    World,
    options_of,
    outcome_of,
)


@pytest.fixture
def world(store, other, gone):
    store(
        Author(id=1, name="we"),
        Author(id=2, name="they"),
        *(Paper(id=number, data={}) for number in (1, 2)),
        Booking(id=1, first=1, last=10),
        Stock(id=1, amount=1),
        Loose(id=1, body="old"),
    )
    return World(other, gone, store)


@pytest.fixture
def heard():
    found: list[events.Repeated] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.Repeated):
            found.append(event)

    yield events.listen(hear) and found
    events.unlisten(hear)


def attempted(world: World, case: Case) -> Callable[[Session], None]:
    """The function of an attempt; what comes between two attempts is done before the second."""

    def attempt(session: Session) -> None:
        world.attempts += 1
        if world.attempts == 2:
            for act in world.between:
                act()
        case.body(session, world)

    return attempt


def check(run: Callable[[], None], case: Case, outcome: str, stored: Any) -> None:
    if outcome == RUNS:
        run()
        found = stored(case.model, 1)
        assert (found and {name: found[name] for name in case.ours or {}}) == case.ours
        return
    with pytest.raises(WouldOverwrite) as caught:
        run()
    found = stored(case.model, 1)
    assert {name: found[name] for name in case.theirs or {}} == case.theirs
    assert not is_transient(caught.value)
    [entry] = caught.value.entries
    assert entry.model is case.model
    for name in case.theirs if entry.action == "update" else ():
        if name in entry.changes:
            assert entry.current[name] == case.ours[name]
            assert entry.database[name] == case.theirs[name]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_what_is_wanted_again(engine, world, heard, stored, name, mode):
    """A1: refused or run as the row's resolver, or ``repeat_values``, says; and told if it runs."""
    case = CASES[name]
    run = unit_of_work(engine, **options_of(case, mode))(attempted(world, case))
    check(run, case, outcome_of(case, mode), stored)

    without_a_resolver = mode in ("nobody", "reject")
    assert bool(heard) is (without_a_resolver and case.told)
    assert world.attempts == 2
