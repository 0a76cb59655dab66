"""docs/reference/guarantees.md has the outcome of every scenario.

``python -m checks.guarantees`` writes it.
A default run has the text of the page, a few scenarios on SQLite, and one on each other engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from checks.guarantees.orders import OF_TWO, PROTECTED, orders
from checks.guarantees.outcomes import POSSIBLE, PREVENTED, PUBLISHED, opened, outcomes
from checks.guarantees.page import PAGE, TITLES, Page, page_of, written
from checks.guarantees.rows import LEVELS, PROTECTIONS
from checks.guarantees.scenarios import HERMITAGE, SCENARIOS
from checks.guarantees.twice import outcomes_of_requests
from tests.engines import Target

WRITE = "run python -m checks.guarantees"
_QUICK = ("G-single", "G2-item", "P4")


def _scenarios() -> Iterator[Any]:
    """The last one is what a default run has on the servers."""
    for key in [*(key for key in SCENARIOS if key not in _QUICK), *_QUICK]:
        yield pytest.param(key, marks=[] if key in _QUICK else pytest.mark.full)


@pytest.fixture(scope="module")
def page() -> Page:
    return written(PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def engine(database: Target) -> Iterator[Engine]:
    with opened(database) as made:
        yield made


def test_the_page_is_written_as_it_would_be_today(page: Page) -> None:
    assert PAGE.read_text(encoding="utf-8") == page_of(page), WRITE


@pytest.mark.parametrize("key", [*_scenarios()])
def test_a_scenario_ends_as_the_page_says(
    key: str, database: Target, engine: Engine, page: Page
) -> None:
    found = outcomes(SCENARIOS[key], engine, database.name)
    assert found == page.scenarios[database.name, key], WRITE


@pytest.mark.full
@pytest.mark.parametrize("key", OF_TWO)
def test_every_order_of_two_transactions_ends_as_the_page_says(
    key: str, database: Target, engine: Engine, page: Page
) -> None:
    assert orders(SCENARIOS[key], engine, database.name) == page.orders[database.name, key], WRITE


@pytest.mark.parametrize("name", TITLES)
def test_each_guarantee_of_two_transactions_has_a_pair_in_every_order(
    name: str, page: Page
) -> None:
    """What happened in one order at the engine's own level is possible in the search of all."""
    (level,) = (n for n, one in enumerate(LEVELS[name]) if one.isolation is None)
    for key in OF_TWO:
        explored = page.orders[name, key]
        assert len(explored) == len(PROTECTED)
        assert {*explored} <= {POSSIBLE, PREVENTED}
        for one, of_all in zip(page.scenarios[name, key][level], explored, strict=False):
            assert one != POSSIBLE or of_all == POSSIBLE


@pytest.mark.parametrize("name", TITLES)
def test_what_a_version_promises_holds_in_every_order(name: str, page: Page) -> None:
    found = [
        {key for key in OF_TWO if page.orders[name, key][place] == POSSIBLE}
        for place in range(len(PROTECTED))
    ]
    assert not found[1] & {"P4", "P4-delete"}
    assert found[2] <= {"PMP", "G2", "swap", "manager", "orphan", "booking"}
    assert found[2] <= found[1] <= found[0]


def test_a_request_that_is_sent_twice_ends_as_the_page_says(
    database: Target, engine: Engine, page: Page
) -> None:
    assert outcomes_of_requests(engine) == page.requests[database.name], WRITE


@pytest.mark.full
@pytest.mark.engines("sqlite-journal")
@pytest.mark.parametrize("key", SCENARIOS)
def test_a_rollback_journal_prevents_what_a_write_ahead_log_prevents(
    key: str, engine: Engine, page: Page
) -> None:
    found = outcomes(SCENARIOS[key], engine, "sqlite-wal")
    assert _possible(found) == _possible(page.scenarios["sqlite-wal", key])


@pytest.mark.parametrize(("name", "published"), PUBLISHED)
def test_a_level_allows_what_hermitage_has_found_and_optilock_only_takes_away(
    name: str, published: str, page: Page
) -> None:
    """This and the next test read the page, which the tests above compare with the databases."""
    numbers = [n for n, level in enumerate(LEVELS[name]) if level.published == published]
    allowed, hermitage = PUBLISHED[name, published], {one.key for one in HERMITAGE}
    for number in numbers:
        places = range(len(PROTECTIONS))
        by_protection = [_found(page, name, number, place) & hermitage for place in places]
        assert all(found <= by_protection[0] for found in by_protection)
        if LEVELS[name][number].title == "`repeatable_read`" and name == "mariadb":
            assert by_protection[0] == allowed - {"PMP-write", "P4", "G-single-write"}
        else:
            assert by_protection[0] == allowed


@pytest.mark.parametrize("name", TITLES)
def test_what_optilock_promises_is_on_the_page(name: str, page: Page) -> None:
    for number, level in enumerate(LEVELS[name]):
        nothing, version, verify, verify_reads = (
            _found(page, name, number, place) for place in range(len(PROTECTIONS))
        )
        assert not version & {"P4", "P4-delete"}
        assert verify == verify_reads
        assert verify <= {"PMP", "G2", "swap", "manager", "orphan", "booking"}
        if level.title == "`repeatable_read`":
            assert not nothing & {"P4", "P4-delete", "G-single", "G-single-predicate", "PMP"}
        if level.title == "`serializable`":
            assert nothing == set()


def _found(page: Page, name: str, number: int, place: int) -> set[str]:
    """The anomalies that are possible at a level with a protection."""
    return {key for key in SCENARIOS if page.scenarios[name, key][number][place] == POSSIBLE}


def _possible(outcomes: tuple[tuple[str, ...], ...]) -> list[list[bool]]:
    return [[outcome == POSSIBLE for outcome in row] for row in outcomes]
