"""Leaving out orders that cannot differ leaves out no outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from checks.explore.programs import PAIRS, ROWS, programs
from checks.explore.rows import Counter
from optilock.testing import explore, replay
from optilock.testing.exploration import dependence, turns
from tests.explore.conftest import MADE

IDS = [" | ".join(pair) for pair in PAIRS]


@pytest.fixture
def outcomes(engine: Engine, put_back: Any) -> Any:
    def outcomes(pair: tuple[str, str], prune: Any, level: str | None = None) -> Any:
        chosen = engine if level is None else engine.execution_options(isolation_level=level)
        sessions, reset = sessionmaker(chosen), put_back(ROWS)
        units = programs(sessions, pair)
        found = explore(*units, sessions=sessions, reset=reset, ignoring=MADE, prune=prune)
        assert found.complete
        return found.outcomes

    return outcomes


@pytest.mark.usually("sqlite-wal")
@pytest.mark.modes(full=True)
@pytest.mark.parametrize("pair", PAIRS, ids=IDS)
@pytest.mark.tenth
def test_the_outcomes_are_those_of_all_orders(pair: tuple[str, str], outcomes: Any) -> None:
    assert outcomes(pair, "source") == outcomes(pair, "none")


@pytest.mark.full
@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("pair", PAIRS[::3], ids=IDS[::3])
def test_so_they_are_at_other_levels(pair: tuple[str, str], level: str, outcomes: Any) -> None:
    assert outcomes(pair, "source", level) == outcomes(pair, "none", level)


@pytest.mark.usually("sqlite-wal")
def test_a_search_for_which_reads_and_commits_may_change_places_loses_an_outcome(
    outcomes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ("a1 a2", "r1 r2")
    all_of_them = outcomes(pair, "none")
    monkeypatch.setattr(dependence, "_meet", lambda way, other: turns.Way.READS not in (way, other))
    assert outcomes(pair, "source") < all_of_them


@pytest.mark.usually("sqlite-wal")
def test_a_search_for_which_a_wait_is_one_event_loses_an_outcome(
    outcomes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_one_event(self: Any, step: Any, other: Any, began: Any) -> None:
        step.units.add(other.number)
        step.touches += began.touches + other.let_go
        other.let_go, began.touches = [], []

    pair = ("a1", "r1 w1")
    all_of_them = outcomes(pair, "none")
    monkeypatch.setattr(turns.Order, "_note_woken", as_one_event)
    assert outcomes(pair, "source") < all_of_them


@pytest.mark.engines("postgresql")
def test_a_read_that_fails_lets_the_unit_go_on_that_waits_for_its_row(
    sessions: Any, put_back: Any
) -> None:
    """PostgreSQL gives the lock back at the error; the other unit's statement takes long."""
    row = Counter.id == 1
    long = select(func.count()).select_from(func.generate_series(1, 1_000_000)).scalar_subquery()

    def fails() -> int:
        with suppress(DBAPIError), sessions.begin() as session:
            session.execute(update(Counter).where(row).values(n=7))
            session.execute(select(1 / (Counter.n - 7)).where(row))
        with sessions() as session:
            return int(session.scalar(select(Counter.n).where(row)))

    def adds() -> None:
        with sessions.begin() as session:
            session.execute(update(Counter).where(row).values(n=Counter.n + 1).returning(long))

    units, reset = (fails, adds), put_back({Counter: [{"id": 1, "n": 1}]})
    left = replay("abab", *units, sessions=sessions, reset=reset)
    assert dict(left.values)["fails"] == "2"
