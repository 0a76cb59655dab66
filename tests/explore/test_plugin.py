"""The pytest plug-in, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
import sys

def test_nothing_is_imported_for_tests_that_use_no_fixture():
    assert not [name for name in sys.modules if name.split(".")[0] in ("sqlalchemy", "tenacity")]
    assert {name for name in sys.modules if name.split(".")[0] == "optilock"} == {
        "optilock", "optilock._old_paths", "optilock.pytest_plugin"
    }

def test_the_option_is_the_limit(explore, tmp_path):
    from sqlalchemy import create_engine
    from checks.explore.pairs import COUNTERS, Pair, increment, twice
    from checks.explore.rows import Base, reset_of

    engine = create_engine(f"sqlite:///{tmp_path / 'plugin.db'}")
    Base.metadata.create_all(engine)
    pair = Pair("", COUNTERS, twice(increment))
    sessions = pair.sessions(engine)
    options = {"sessions": sessions, "reset": reset_of(engine, COUNTERS)}
    assert explore(*pair.units(sessions), **options).orders == 3
    assert explore(*pair.units(sessions), limit=4, **options).orders == 4

def test_faults_are_there(optilock_faults):
    assert callable(optilock_faults)
"""


@pytest.mark.full
def test_the_plug_in_has_fixtures_and_an_option(tmp_path: Path) -> None:
    (tmp_path / "test_plugin_within.py").write_text(TEST)
    loaded = any(one.name == "optilock" for one in entry_points(group="pytest11"))
    plugin = [] if loaded else ["-p", "optilock.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
    options = ["--rootdir", str(tmp_path), "-c", "/dev/null", "--optilock-explore-limit", "3"]
    done = subprocess.run(
        [*command, *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_pytest_finds_it_by_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"optilock": "optilock.pytest_plugin"}
    assert import_module("optilock.pytest_plugin").explore is not None
