"""tests/map.json names the tests of each function (``python -m tests.of --record`` makes it)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import of
from tests.of import ROOT, Reach, arguments, choose, functions_of, read

RECORD = "run python3.12 -m tests.of --record"
#: A function that is new, or has another name, does not need a new record at once.
NEW = 0.03


def test_every_test_of_the_map_is_there() -> None:
    named = {one for of in read().values() for some in of.values() for one in some}
    there = {f"{file}::{name}" for file in _files(named) for name in _tests(ROOT / file)}
    gone = named - there
    assert len(gone) <= NEW * len(named), f"{RECORD}: {sorted(gone)}"


def _files(tests: set[str]) -> set[str]:
    return {test.partition("::")[0] for test in tests}


def _tests(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.exists() else ast.Module([], [])
    for name, _ in functions_of(ast.unparse(tree)):
        yield name.replace(".", "::")


def test_the_map_knows_the_functions_of_the_library() -> None:
    known = read()
    there = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / "optilock").rglob("*.py")
        for name, _ in functions_of(path.read_text(encoding="utf-8"))
    }
    unknown = {(file, name) for file, name in there if name not in known.get(file, {})}
    assert len(unknown) <= NEW * len(there), f"{RECORD}: {sorted(unknown)}"


def test_the_fastest_test_of_a_file_is_first() -> None:
    order = json.loads((ROOT / "tests" / "map.json").read_text(encoding="utf-8"))["tests"]
    found = of.tests_of(["optilock/_mapped.py"])
    assert found == sorted(found, key=order.index)
    assert len(found) > 3
    function = next(name for name, tests in read()["optilock/_mapped.py"].items() if tests)
    assert {*of.tests_of([f"optilock/_mapped.py::{function}"])} < {*found}


def test_each_line_is_run_again_by_quicker_tests_and_by_those_that_run_little_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of, "_TIMES", 2)
    tests = {
        "slow": Reach(9, {"a.py": [1, 2, 3, 4]}),
        "wide": Reach(0, {"a.py": [1, 2], "b.py": [*range(500)]}),
        "one": Reach(0, {"a.py": [1, 2, 3]}),
        "two": Reach(0, {"a.py": [1, 2]}),
        "elsewhere": Reach(0, {"b.py": [1]}),
    }
    assert choose([1, 2], "a.py", tests) == ["two", "one"]
    assert choose([1, 2, 3, 4], "a.py", tests) == ["one", "two", "slow"]
    assert choose([9], "a.py", tests) == []


def test_functions_are_known_by_their_names_in_classes() -> None:
    text = "class A:\n    def f(self):\n        x = 1\n        return x\nif 1:\n    def g(): ...\n"
    assert [*functions_of(text)] == [("A.f", frozenset({3, 4})), ("g", frozenset({6}))]


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        (
            ["checks/project/test_of.py::test_functions_are_known_by_their_names_in_classes"],
            "1 passed",
        ),
        ([], "deselected"),  # not all of them
    ],
    ids=["one", "none"],
)
def test_only_the_executions_of_named_functions_run(
    tmp_path: Path, functions: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *arguments(functions, tmp_path)]
    command.append("checks/project/test_of.py")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said in done.stdout
    assert ("passed" in done.stdout) == bool(functions)


def test_a_record_has_the_lines_of_each_test_or_names_the_python_that_it_needs(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", f"--reached={tmp_path}"]
    command.append("tests/unit/test_share_modes.py")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if sys.version_info < (3, 12):
        assert "--reached needs Python 3.12 or newer" in done.stderr
        assert [*tmp_path.iterdir()] == []
        return
    [file] = tmp_path.glob("*.json")
    told = json.loads(file.read_text(encoding="utf-8"))
    assert all(name.startswith("tests/unit/test_share_modes.py::test_") for name in told)
    assert any("optilock/" in source for _, lines in told.values() for source in lines)
