"""No random program tells a watched session from a plain one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from checks.differential.differences import Place, place_on, shrink
from checks.differential.programs import Program, program
from checks.differential.steps import Step
from optilock._watched.guard import flush as guarded_flushes

#: How many, with ``--full``, and with ``--product``. ``checks.differential --seeds`` runs more.
SEEDS = {
    "sqlite": (240, 600, 3_000),
    "postgresql": (60, 200, 3_000),
    "mariadb": (60, 200, 3_000),
}


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    with place_on(engine) as made:
        yield made


def _told(place: Place, seeds: range) -> str:
    """The first differences, each as short as it goes; nothing if there is none."""
    found = (place.difference(program(seed)) for seed in seeds)
    first = [shrink(place, one) for one, _ in zip((f for f in found if f), range(3), strict=False)]
    return "\n".join(map(str, first))


@pytest.mark.timeout(900)
def test_a_watched_session_means_what_a_plain_one_means(
    place: Place, database: Any, tries: Any
) -> None:
    """C3, C4, C5, C6, C12"""
    told = _told(place, range(tries(*SEEDS[database.family])))
    assert not told, told


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_always_the_same_program(seed: int) -> None:
    assert program(seed) == program(seed)


@pytest.mark.engines("sqlite-wal")
def test_a_difference_is_told_with_the_steps_that_it_needs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the session forgets that Ctrl-C ends the transaction."""
    monkeypatch.setattr(guarded_flushes, "give_up", lambda session: None)
    warm = (Step("get"), Step("set_", 1, 0), Step("commit"), Step("read", 1), Step("read", 2))
    steps = (*warm, Step("set_bad", 1, 28), Step("flush"), Step("commit"))
    found = place.difference(Program(-1, 16, False, True, steps))
    assert found is not None
    short = shrink(place, found)
    assert len(short.program.steps) < len(steps)
    assert "set_bad" in str(short)
