"""What a run of SQLAlchemy's own tests means, and the list of those that may fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.sqlalchemy_suite.known import differences
from checks.sqlalchemy_suite.plugin import name_of
from checks.sqlalchemy_suite.verdict import Run, judge

KNOWN = {"test_a.py::A::test_listed": "because"}
GOOD = {"passed": ("test_a.py::A::test_other",), "statements": 3, "wanted": 4, "guarded": 4}


def test_a_run_with_only_listed_failures_is_good() -> None:
    run = Run(**GOOD, failed={"test_a.py::A::test_listed": "E"})

    assert judge(run, KNOWN) == []


def test_a_failure_that_is_not_listed_is_told() -> None:
    run = Run(**GOOD, failed={"test_a.py::A::test_new": "E"})

    assert judge(run, KNOWN) == ["test_a.py::A::test_new fails, and is not on the list"]


@pytest.mark.parametrize("name", ["test_a.py::A::test_listed", "test_a.py::A::test_listed[x-1]"])
def test_a_listed_test_that_passes_is_told(name: str) -> None:
    run = Run(passed=(name,), statements=1)

    (sentence,) = judge(run, KNOWN)

    assert sentence.endswith("passes: take it off")


def test_a_name_on_the_list_means_all_of_its_parameters_and_no_longer_name() -> None:
    run = Run(
        **GOOD, failed={"test_a.py::A::test_listed[x-1]": "E", "test_a.py::A::test_listed_2": "E"}
    )

    assert judge(run, KNOWN) == ["test_a.py::A::test_listed_2 fails, and is not on the list"]


def test_a_run_without_a_guarded_statement_shows_nothing() -> None:
    (sentence,) = judge(Run(passed=("test_a.py::A::test_other",)), KNOWN)

    assert sentence.startswith("no guarded statement was sent")


def test_a_row_that_the_guard_has_not_seen_is_told() -> None:
    (sentence,) = judge(Run(**{**GOOD, "wanted": 6}), KNOWN)

    assert sentence == "2 rows with a version passed the guard by"


def test_a_run_without_a_test_shows_nothing() -> None:
    assert "no test ran" in judge(Run(statements=1), KNOWN)


@pytest.mark.parametrize("database", ["sqlite+pysqlite_3_40_1", "postgresql+psycopg_18_6", "x"])
def test_a_test_is_called_the_same_on_every_database(database: str) -> None:
    suffix = "" if database == "x" else f"_{database}"

    assert name_of(f"test/a.py::A{suffix}::test_b[c]") == "test/a.py::A::test_b[c]"


def test_the_docs_show_every_test_that_may_fail_with_its_reason() -> None:
    shown = Path(__file__).parents[2].joinpath("docs/contributing/sqlalchemy-suite.md").read_text()
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| `test/")]

    assert {test.strip("| `"): reason.strip(" |") for test, reason in rows} == differences()


COUNTED = """
from collections import Counter
from checks.sqlalchemy_suite.counting import count_into
counts = Counter()
count_into(counts)
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from optilock import watch
from tests.support.models import Account
engine = create_engine("sqlite://")
Account.metadata.create_all(engine, tables=[Account.__table__])
with watch(sessionmaker(engine))() as session:
    session.add_all(accounts := [Account(id=n) for n in range(3)])
    session.commit()
    accounts[0].owner = "alone"
    session.commit()
    for account in accounts:
        account.owner = "together"
    session.commit()
    session.delete(accounts[0])
    session.commit()
print(counts["wanted"], counts["guarded"], counts["statements"])
"""


def test_the_rows_and_statements_of_a_guarded_flush_are_counted() -> None:
    """In a process of its own, which the counting changes for good."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["5", "5", "3"], done.stderr
