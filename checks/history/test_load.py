"""Many clients at once, for a second or two; ``python -m checks.history`` runs for longer."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from checks.history.load import ALWAYS_MET, Outcome, forbidden, load, place, quiet
from checks.history.soak import Needs, Sample
from tests.engines import Targets

CLIENTS = 16


@pytest.fixture
def loaded(database: Any, targets: Targets, tmp_path: Path) -> Any:
    def loaded(seconds: float, **options: Any) -> Outcome:
        usual = {"way": "units", "faults": False, "broken": None, "exactly_once": False}
        asked = Namespace(
            **{**usual, "clients": CLIENTS, "first": 1, "at_least": 21, **options}, seconds=seconds
        )
        with quiet(), place(database.name, targets, tmp_path, CLIENTS) as here:
            return load(here, asked, tmp_path)

    return loaded


@pytest.mark.usually("postgresql")
@pytest.mark.parametrize("way", ["units", "verify"])
def test_nothing_is_lost_or_doubled_by_faults(loaded: Any, way: str) -> None:
    outcome = loaded(1.5, way=way, faults=True)
    assert not outcome.broken, str(outcome)
    assert sum(outcome.met[kind] for kind in ALWAYS_MET) > 0
    assert outcome.record.ended["ok"] > 20


@pytest.mark.full
def test_serializable_units_show_no_cycle(loaded: Any) -> None:
    outcome = loaded(3, way="serializable", faults=True)
    assert not outcome.broken, str(outcome)
    assert {"G-single", "G2"} <= outcome.forbidden


@pytest.mark.engines("sqlite-wal")
def test_without_versions_appends_are_lost(loaded: Any) -> None:
    """The test of the test."""
    outcome = loaded(0.7, broken="versions", at_least=200)
    assert outcome.broken["lost"]


@pytest.mark.engines("sqlite-wal")
@pytest.mark.full
def test_units_that_run_again_after_an_unknown_outcome_append_twice(loaded: Any) -> None:
    """The test of the test."""
    outcome = loaded(2, broken="retry", faults=True, at_least=200)
    assert outcome.broken["doubled"], str(outcome)


def test_a_cluster_makes_no_promise_about_write_skew_at_serializable() -> None:
    assert "G2" in forbidden("serializable", "mariadb")
    assert "G2" not in forbidden("serializable", "galera")
    assert "lost" in forbidden("units", "galera")


@pytest.mark.parametrize(
    ("name", "last", "grows"),
    [("files", 30, False), ("files", 60, True), ("memory", 104.0, False), ("memory", 130.0, True)],
)
def test_what_needs_more_at_the_end_of_a_soak_is_reported(name, last, grows) -> None:
    usual = {"memory": 100.0, "files": 30, "threads": 20, "connections": 17}
    begin, end = Sample(**usual), Sample(**{**usual, name: last})
    needs = Needs([begin] * 30 + [end] * 10)
    assert (name in needs.grown()) is grows
