"""tests/map.json: the tests that run the lines of each function (``python -m tests.of``)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.of import FILE, ROOT, TIMES, Map, functions_of, merged, read, sources, stale

SOURCE = """
class A:
    def f(self):
        if self.x:
            return 1
        return 2
async def g():
    pass
"""


@pytest.mark.pages
@pytest.mark.skipif(not FILE.exists(), reason="the map is not recorded")
def test_the_map_is_of_the_files_and_tests_that_exist() -> None:
    """But for a tenth: it is recorded again after many changes, and not after each."""
    known = read(FILE.read_text(encoding="utf-8"))
    functions = {name: functions_of(text) for name, text in sources().items()}
    old = [*stale(known, functions)]
    most = sum(map(len, functions.values())) + len(known.seconds)
    assert len(old) <= most / 10, "run: python -m tests.of --record\n" + "\n".join(old)


def test_functions_have_qualified_names_and_the_lines_of_their_bodies() -> None:
    assert functions_of(SOURCE) == {"A.f": {4, 5, 6}, "g": {8}}


def test_tests_that_run_least_come_first_until_each_line_has_enough() -> None:
    narrow = {f"narrow{n}": (1.0, {"a.py": [4, 6], "b.py": [*range(n)]}) for n in range(TIMES + 2)}
    recorded: Any = {"wide": (0.1, {"a.py": [4, 5, 6, 8], "b.py": [*range(50)]}), **narrow}
    after = merged(Map(), recorded, {"a.py": SOURCE})
    first = [f"narrow{n}" for n in range(TIMES)]
    assert after.files == {"a.py": {"A.f": [*first, "wide"], "g": ["wide"]}}
    assert after.tests_of("a.py") == ["narrow0", "wide", *first[1:]]
    assert read(after.text()).files == after.files


def test_a_test_that_is_recorded_again_replaces_what_was_known_of_it() -> None:
    before = Map({"old": 1.0, "a": 1.0}, {"a.py": {"A.f": ["old", "a"], "gone": ["old"]}})
    recorded: Any = {"old": (2.0, {"a.py": [8]}), "b": (1.0, {"a.py": [4]})}
    after = merged(before, recorded, {"a.py": SOURCE})
    assert after.files == {"a.py": {"A.f": ["b", "a"], "g": ["old"]}}
    assert after.seconds["old"] == 2.0


def test_what_is_newer_or_older_than_the_record_is_told() -> None:
    test = "tests/unit/test_map.py::test_it_is_gone"
    source = "optilock/coroutines.py"
    [name, *_] = functions_of((ROOT / source).read_text(encoding="utf-8"))
    told = [*stale(Map({test: 1.0}, {source: {name: [test]}}), [source])]
    assert f"no longer exists: {test}" in told
    assert f"no recorded test runs {source} {name}" not in told
    assert f"no recorded test runs {source} {name}" in [*stale(Map(), [source])]


def test_a_run_writes_the_lines_of_the_library_by_their_tests(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    test = "tests/unit/test_etag.py"
    words = ["-n0", "-q", f"--reached={tmp_path}", test]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=True)
    [written] = tmp_path.glob("*.json")
    told = json.loads(written.read_text(encoding="utf-8"))
    assert {name.partition("::")[0] for name in told} == {test}
    assert all(lines for _, files in told.values() for lines in files.values())
