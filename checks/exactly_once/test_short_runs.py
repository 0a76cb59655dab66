"""Short runs over lines that are cut; ``python -m checks.exactly_once`` makes long ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from checks.exactly_once.cut_commits import WAYS, Choose, seeded
from checks.exactly_once.increments import DRIVERS, count, prepare, run
from optilock.dialects.mariadb import commit_tokens as of_mariadb
from optilock.dialects.postgresql import commit_tokens as of_postgresql

OF = {"postgresql": "psycopg", "mysql": "pymysql"}


def drivers(engine: Any) -> list[str]:
    return [name for name, (url, _) in DRIVERS.items() if url.startswith(engine.dialect.name)]


def once_late() -> Choose:
    """Cut the first COMMIT of the program, so late that the question comes before it."""
    ways = iter(["late"])
    return lambda: next(ways, None)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("mode", ["true", "key", "pipelined"])
def test_each_increment_is_stored_once_and_has_its_own_result(engine, mode, tries):
    increments = tries(10, 15, 25)
    for number, driver in enumerate(drivers(engine)):
        if mode == "pipelined" and not driver.startswith("psycopg"):
            continue
        found = run(engine, driver, mode, increments, seeded(0.4, number), hold=0.1)
        assert found.is_right, (driver, found)
        assert sum(found.cuts.values()) > increments / 5


@pytest.mark.engines("postgresql", "mariadb")
def test_a_unit_that_runs_again_without_knowing_counts_too_much(engine):
    """A test of the test."""
    found = run(engine, OF[engine.dialect.name], "naive", 12, seeded(0.5, 1, ("after", "between")))
    assert found.counter > 12


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.full
def test_a_question_that_is_rolled_back_counts_too_much_where_commits_are_late(engine):
    """A test of the test: only the fence that is committed keeps a late COMMIT out."""
    driver = OF[engine.dialect.name]
    assert run(engine, driver, "unfenced", 2, once_late(), late=2).counter > 2
    assert run(engine, driver, "true", 2, once_late(), late=2).is_right


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.full
def test_an_insert_that_takes_the_token_for_its_own_counts_too_much(engine, monkeypatch):
    """A test of the test: after ON CONFLICT DO NOTHING, or IGNORE, COMMIT is carried out."""
    lax = of_postgresql._ADD + " ON CONFLICT DO NOTHING"
    monkeypatch.setattr(of_postgresql, "_ADD", lax)
    usual = of_mariadb.goes_with_commit
    monkeypatch.setattr(
        of_mariadb,
        "goes_with_commit",
        lambda connection, sql: usual(connection, sql.replace("INSERT", "INSERT IGNORE")),
    )
    driver = OF[engine.dialect.name]
    assert run(engine, driver, "true", 2, once_late(), late=2).counter > 2


def test_every_way_is_one_of_five():
    chosen = {seeded(1, seed)() for seed in range(60)}
    assert chosen == {*WAYS}


@pytest.mark.full
@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_of_several_processes_with_one_key_one_runs_and_all_get_its_result(engine):
    """8 processes and 50 keys; one body a key is stored. A file has one writer at a time."""
    prepare(engine)
    processes, keys = (4, 12) if engine.dialect.name == "sqlite" else (8, 50)
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "checks.exactly_once.processes", url, str(keys)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    results = [json.loads(process.communicate(timeout=240)[0]) for process in started]
    assert all(found == results[0] for found in results)
    assert len(results[0]) == count(engine)[0] == keys
