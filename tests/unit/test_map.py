"""tests/map.json: the tests that call each function (``python -m tests.of --record``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.of import FILE, KEPT, ROOT, Map, merged, read

pytestmark = pytest.mark.pages

#: Functions that no test calls in its own process: programs and other interpreters run them.
ELSEWHERE = {"optilock/__main__.py"}


@pytest.fixture(scope="module")
def known() -> Map:
    return read(FILE.read_text(encoding="utf-8"))


def test_every_source_file_with_functions_has_a_row(known: Map) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "optilock").rglob("*.py")
        if [*_functions(ast.parse(path.read_text(encoding="utf-8")).body)]
    }
    absent = sources - known.files.keys() - ELSEWHERE
    assert not absent, "run: python -m tests.of --record, with the tests of these files"
    assert known.files.keys() <= sources


def test_every_test_of_the_map_exists(known: Map) -> None:
    files = dict.fromkeys(test.partition("::")[0] for test in known.seconds)
    there = {
        f"{name}::{function}"
        for name in files
        if (ROOT / name).exists()
        for function in _functions(ast.parse((ROOT / name).read_text(encoding="utf-8")).body)
    }
    gone = known.seconds.keys() - there
    assert not gone, "run: python -m tests.of --record, with the tests of these files"


def test_the_closest_test_of_each_function_is_run_and_the_quickest_first() -> None:
    tests = {"f": ["a", "b"], "g": ["c", "b"], "h": ["a", "d"]}
    known = Map({"a": 3.0, "b": 1.0, "c": 2.0, "d": 0.5}, {"optilock/x.py": tests})
    assert known.tests_of("optilock/x.py", 2) == ["c", "a"]
    assert known.tests_of("optilock/x.py") == ["d", "b", "c", "a"]
    assert known.tests_of("optilock/y.py") == []


def test_a_test_that_is_recorded_again_replaces_what_was_known_of_it() -> None:
    place = ("optilock/mapped.py", "facts_of")
    before = Map({"old": 1.0, "a": 1.0}, {place[0]: {place[1]: ["old", "a"], "gone": ["old"]}})
    after = merged(before, {"old": 2.0, "b": 1.0}, {"old": {place, ("x", "y")}, "b": {place}})
    assert after.files == {place[0]: {place[1]: ["a", "b", "old"]}}
    assert after.seconds["old"] == 2.0


def test_the_tests_that_call_least_beside_a_function_are_kept() -> None:
    place = ("optilock/mapped.py", "facts_of")
    reached = {str(n): {place, *((f"x{n}", str(k)) for k in range(n))} for n in range(KEPT + 3)}
    after = merged(Map(), dict.fromkeys(reached, 1.0), reached)
    assert after.files[place[0]][place[1]] == [str(n) for n in range(KEPT)]
    assert read(after.text()).files == after.files


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node.body, prefix)
