"""The demo, run as its users run it: last writer wins loses edits and nothing else does."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text

SHORT = ("--editors", "3", "--edits", "8", "--pages", "2")
OTHERS = ("optimistic, retry", "optimistic, merge", "pessimistic", "serializable, retry")


def optilock_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optilock.cli", "demo", *SHORT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@functools.cache
def figures(url: str) -> dict[str, dict[str, Any]]:
    done = optilock_demo("--json", "--url", url)
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["strategies"]}


def url_of(database: Any) -> str:
    return database.url if isinstance(database.url, str) else str(database.url)


def test_last_writer_wins_loses_edits_and_no_other_strategy_does(database: Any) -> None:
    found = dict(figures(url_of(database)))
    assert found.pop("last writer wins")["lost"] > 0
    assert tuple(found) == OTHERS
    for strategy in found.values():
        assert (strategy["asked"], strategy["committed"], strategy["lost"]) == (24, 24, 0)


def test_the_optimistic_strategies_met_conflicts_and_merging_saved_retries(database: Any) -> None:
    found = dict(figures(url_of(database)))
    retry, merge = found["optimistic, retry"], found["optimistic, merge"]
    assert retry["conflicts"] > 0
    assert (retry["resolved"], merge["resolved"] > 0) == (0, True)
    assert retry["retries"] == retry["conflicts"]
    assert merge["retries"] < merge["conflicts"]


def test_the_tables_of_the_demo_are_gone_and_others_are_left_alone(database: Any) -> None:
    engine = create_engine(url_of(database))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE optilock_neighbour (id INTEGER PRIMARY KEY)"))
    try:
        assert optilock_demo("--json", "--url", url_of(database)).returncode == 0
        names = inspect(engine).get_table_names()
        assert "optilock_neighbour" in names
        assert not [name for name in names if name.startswith("optilock_demo_")]
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE optilock_neighbour"))
        engine.dispose()


@pytest.mark.parametrize("word", ["lost", "One conflict, step by step", "original", "merged"])
def test_the_default_run_shows_the_table_and_a_conflict(shown: str, word: str) -> None:
    assert word in shown


def test_the_pages_are_credited(shown: str) -> None:
    assert "(c) Python Software Foundation, PSF License Version 2" in " ".join(shown.split())


@pytest.fixture(scope="module")
def shown() -> str:
    """What is printed on a SQLite file of the demo's own."""
    done = optilock_demo()
    assert done.returncode == 0, done.stderr
    return done.stdout
