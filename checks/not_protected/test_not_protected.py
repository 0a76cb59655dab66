"""docs/reference/not-protected.md has each way to write.

``python -m checks.not_protected`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from checks.not_protected.outcomes import COLUMNS, SILENT, Outcomes, opened, outcomes_of
from checks.not_protected.page import PAGE, page_of, written
from checks.not_protected.ways import WAYS
from tests.engines import Target

WRITE = "run python -m checks.not_protected"


@pytest.fixture(scope="module")
def page() -> dict[str, Outcomes]:
    return written(PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def engine(database: Target) -> Iterator[Engine]:
    with opened(database) as made:
        yield made


def test_the_page_is_written_as_it_would_be_today(page: dict[str, Outcomes]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page_of(page), WRITE


@pytest.mark.parametrize("number", range(len(WAYS)))
def test_each_way_to_write_ends_as_the_page_says(
    number: int, database: Target, engine: Engine, page: dict[str, Outcomes]
) -> None:
    way = [*WAYS][number]
    assert outcomes_of(engine, way) == {way: page[database.name][way]}, WRITE


def test_no_way_is_silent_in_a_strict_session_with_a_guard_trigger(
    page: dict[str, Outcomes],
) -> None:
    """B1, B2: where MariaDB fires no trigger for a foreign key, the session refuses."""
    last = len(COLUMNS) - 1
    silent = {
        (name, way)
        for name, outcomes in page.items()
        for way, found in outcomes.items()
        if found[last] == SILENT
    }
    assert silent == set()
