"""The demo, run as its users run it: last writer wins loses edits and nothing else does."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import inspect, text

from tests.engines import Target

#: Each run is a program of its own, and takes seconds.
pytestmark = pytest.mark.usually("sqlite-wal")

SHORT = ("--editors", "3", "--edits", "8", "--pages", "2")
OTHERS = ("optimistic, retry", "optimistic, merge", "lease", "pessimistic", "serializable, retry")


def optilock_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optilock.cli", "demo", *SHORT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@dataclass(frozen=True)
class Shown:
    figures: dict[str, dict[str, Any]]
    #: The tables of the database afterwards; before, there was one called optilock_neighbour.
    tables: list[str]


@pytest.fixture(scope="module")
def runs() -> dict[str, Shown]:
    """One run for each database, by its name: the tests ask different things about it."""
    return {}


@pytest.fixture
def shown(database: Target, runs: dict[str, Shown]) -> Shown:
    if database.name not in runs:
        runs[database.name] = _run(database)
    return runs[database.name]


def _run(database: Target) -> Shown:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE optilock_neighbour (id INTEGER PRIMARY KEY)"))
    done = optilock_demo("--json", "--url", database.url)
    assert done.returncode == 0, done.stderr
    tables = inspect(engine).get_table_names()
    engine.dispose()
    return Shown({each["name"]: each for each in json.loads(done.stdout)["strategies"]}, tables)


@pytest.mark.full
def test_last_writer_wins_loses_edits_and_no_other_strategy_does(shown: Shown) -> None:
    found = dict(shown.figures)
    assert found.pop("last writer wins")["lost"] > 0
    assert tuple(found) == OTHERS
    for strategy in found.values():
        assert (strategy["asked"], strategy["committed"], strategy["lost"]) == (24, 24, 0)


def test_the_optimistic_strategies_met_conflicts_and_merging_saved_retries(shown: Shown) -> None:
    found = shown.figures
    retry, merge = found["optimistic, retry"], found["optimistic, merge"]
    assert retry["conflicts"] > 0
    assert (retry["resolved"], merge["resolved"] > 0) == (0, True)
    assert retry["retries"] == retry["conflicts"]
    assert merge["retries"] < merge["conflicts"]


def test_under_a_lease_nobody_meets_and_some_have_waited(shown: Shown) -> None:
    found = shown.figures["lease"]
    assert (found["conflicts"], found["resolved"]) == (0, 0)
    assert found["retries"] > 0


def test_the_tables_of_the_demo_are_gone_and_others_are_left_alone(shown: Shown) -> None:
    assert shown.tables == ["optilock_neighbour"]


@pytest.mark.parametrize("word", ["lost", "One conflict, step by step", "original", "merged"])
def test_the_default_run_shows_the_table_and_a_conflict(printed: str, word: str) -> None:
    assert word in printed


def test_the_pages_are_credited(printed: str) -> None:
    assert "(c) Python Software Foundation, PSF License Version 2" in " ".join(printed.split())


@pytest.fixture(scope="module")
def printed() -> str:
    """What is printed on a SQLite file of the demo's own."""
    done = optilock_demo()
    assert done.returncode == 0, done.stderr
    return done.stdout
