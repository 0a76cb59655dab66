"""What a run of another package's tests means, and the list of those that may differ."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.neighbours.comparison import MODES, Difference, Run, compare, differences
from checks.neighbours.environments import neighbours

ROOT = Path(__file__).parents[2]
COUNTS = {"flushes": 3, "wanted": 2, "guarded": 2, "statements": 2}
KNOWN = [Difference("a", "versioned", "t.py::test_listed", "because")]
PLAIN = Run({"t.py::test_listed[x]": "passed", "t.py::test_other": "failed"})


def sentences(
    outcomes: dict[str, str], known: list[Difference] = KNOWN, **counts: int
) -> list[str]:
    return compare(PLAIN, Run(outcomes, {}, {**COUNTS, **counts}), known, updates=True)


def test_a_run_with_only_listed_differences_is_good() -> None:
    assert sentences({"t.py::test_listed[x]": "failed", "t.py::test_other": "failed"}) == []


@pytest.mark.parametrize(
    ("outcomes", "start"),
    [
        (
            {"t.py::test_listed[x]": "failed", "t.py::test_other": "passed"},
            "t.py::test_other: failed",
        ),
        ({"t.py::test_listed[x]": "failed"}, "t.py::test_other: failed without optilock, None"),
        ({**PLAIN.outcomes}, "t.py::test_listed is on the list of tests that differ, and does not"),
    ],
)
def test_any_other_difference_is_wrong(outcomes: dict[str, str], start: str) -> None:
    (sentence,) = sentences(outcomes)

    assert sentence.startswith(start)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"flushes": 0}, "no session was flushed: the tests have shown nothing about optilock"),
        ({"statements": 0}, "no guarded statement was sent: the tests have shown nothing about"),
        ({"wanted": 4}, "2 rows with a version passed the guard by"),
    ],
)
def test_a_run_that_shows_nothing_is_wrong(counts: dict[str, int], sentence: str) -> None:
    (found,) = sentences({**PLAIN.outcomes}, known=[], **counts)

    assert found.startswith(sentence)


def test_each_listed_difference_is_one_of_a_neighbour_in_a_mode() -> None:
    known = neighbours()
    assert {one.neighbour for one in differences()} <= known.keys()
    assert {one.mode for one in differences()} <= {*MODES}
    for one in known.values():
        pinned = [one.source, *one.packages]
        assert all("==" in package for package in pinned), one.name


def test_the_docs_show_every_difference_with_its_reason() -> None:
    page = (ROOT / "docs/contributing/sqlalchemy-suite.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "| `tests/" in line]
    shown = {(name, mode, test.strip("`"), reason) for name, mode, test, reason in rows}

    assert shown == {(one.neighbour, one.mode, one.test, one.reason) for one in differences()}


MODELS = """
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, declarative_base, mapped_column

Base = declarative_base()

class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]

def test_update():
    engine = sqlalchemy.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(note := Note(text=""))
        session.commit()
        note.text = "new"
        session.commit()
    engine.dispose()
    assert "version" not in Note.__table__.c
"""


@pytest.mark.parametrize("mode", ["watched", "versioned"])
@pytest.mark.full
def test_the_plug_in_watches_and_versions_the_models_of_others(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_theirs.py").write_text(MODELS)
    folders = [ROOT / "checks" / one for one in ("neighbours", "sqlalchemy_suite")]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "watch_sessions", "-c/dev/null", "."],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT, ROOT / "apps"])),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OPTILOCK_NEIGHBOUR_MODE": mode,
            "OPTILOCK_NEIGHBOUR_REPORT": "report",
        },
        check=False,
        capture_output=True,
    )
    found = ast.literal_eval((tmp_path / "report").read_text())

    outcome = {"watched": "passed", "versioned": "failed"}[mode]
    assert found["outcomes"] == {"test_theirs.py::test_update": outcome}
    rows = {"wanted": 1, "guarded": 1, "statements": 1}
    assert found["counts"] == {"flushes": 2, **(rows if mode == "versioned" else {})}
