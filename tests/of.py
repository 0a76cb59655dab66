"""Find the tests that protect a source file: those that were seen to run its lines.

    python -m tests.of optilock/watched/guard/batch.py          print them
    python -m tests.of --run optilock/watched/guard/batch.py    run them, the quickest first
    python -m tests.of --record                                 record all again, by a default run
    python -m tests.of --record tests/database/flush            record only these tests again

``tests/map.json`` is the record. It has for each function of the library the test functions that
run its lines: those first that run least beside it, because they fail for few other reasons, and
enough of them to run each line three times. What a test does in programs that it starts is not
seen. Names of functions and tests that are newer or older than the record are printed, too.
Recording needs coverage.py (``python -m pip install --group map``). Without a record the files are
named that :mod:`tests.map` finds by words.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import map as map_of_words

__all__ = ["FILE", "ROOT", "Map", "Recorded", "arguments", "functions_of", "merged", "read"]

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "map.json"
#: Tests that each line has, where so many run it.
TIMES = 3
#: The tests of a function, at most.
KEPT = 12
#: Seconds and lines by their file, of each test function.
Recorded = Mapping[str, tuple[float, Mapping[str, Sequence[int]]]]


@dataclass
class Map:
    """``seconds`` of each test; of each source file, the tests of its functions."""

    seconds: dict[str, float] = field(default_factory=dict)
    files: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def tests_of(self, source: str) -> list[str]:
        """The closest test of each function, then the second one of each, and so on."""
        functions = [*self.files.get(source, {}).values()]
        ranked = (
            tests[place] for place in range(KEPT) for tests in functions if place < len(tests)
        )
        return [*dict.fromkeys(ranked)]

    def text(self) -> str:
        """A line for each source file, with the numbers of the tests."""
        tests = sorted({test for source in self.files for test in self.tests_of(source)})
        number = {test: place for place, test in enumerate(tests)}
        rows = (
            f"{json.dumps(source)}: "
            + json.dumps(
                {name: [number[one] for one in found] for name, found in sorted(functions.items())},
                separators=(",", ":"),
            )
            for source, functions in sorted(self.files.items())
        )
        tested = ",\n".join(f"{json.dumps(test)}: {self.seconds[test]:.2f}" for test in tests)
        called = ",\n".join(rows)
        return f'{{"seconds": {{\n{tested}\n}}, "files": {{\n{called}\n}}}}\n'


def read(text: str) -> Map:
    told = json.loads(text)
    names = [*told["seconds"]]
    files = {
        source: {name: [names[place] for place in places] for name, places in functions.items()}
        for source, functions in told["files"].items()
    }
    return Map(told["seconds"], files)


def functions_of(text: str) -> dict[str, set[int]]:
    """The functions of a file by their qualified names, with the lines of their bodies."""
    return dict(_functions_in(ast.parse(text).body, ""))


def _functions_in(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, set[int]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, last = node.body[0].lineno, node.end_lineno
            assert last is not None
            yield prefix + node.name, {*range(first, last + 1)}
        elif isinstance(node, ast.ClassDef):
            yield from _functions_in(node.body, f"{prefix}{node.name}.")
        else:
            for inner in ("body", "orelse", "handlers"):
                yield from _functions_in(getattr(node, inner, ()), prefix)


def merged(before: Map, recorded: Recorded, sources: Mapping[str, str]) -> Map:
    """The tests that were run again replace what was known of them."""
    width = {test: sum(map(len, lines.values())) for test, (_, lines) in recorded.items()}
    seconds = {**before.seconds, **{test: spent for test, (spent, _) in recorded.items()}}
    by_source: dict[str, dict[str, set[int]]] = defaultdict(dict)
    for test, (_, lines) in recorded.items():
        for source, numbers in lines.items():
            by_source[source][test] = {*numbers}
    after = Map(seconds)
    for source, text in sources.items():
        found = {}
        for name, body in functions_of(text).items():
            known = [
                test for test in before.files.get(source, {}).get(name, []) if test not in recorded
            ]
            runs = {test: body & lines for test, lines in by_source[source].items() if body & lines}
            closest = sorted(runs, key=lambda test: (width[test], seconds[test], test))
            found[name] = [*_enough(closest, runs), *known][:KEPT]
        after.files[source] = {name: tests for name, tests in found.items() if tests}
    after.files = {source: functions for source, functions in after.files.items() if functions}
    return after


def _enough(tests: Iterable[str], runs: Mapping[str, set[int]]) -> Iterator[str]:
    """The first tests that run each line ``TIMES``."""
    times: Counter[int] = Counter()
    for test in tests:
        if any(times[line] < TIMES for line in runs[test]):
            times.update(runs[test])
            yield test


def sources() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "optilock").rglob("*.py")
    }


def record(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="optilock-map-") as name:
        command = [sys.executable, "-m", "pytest", "-q", f"--reached={name}", *(words or ["tests"])]
        code = subprocess.run(command, cwd=ROOT).returncode
        recorded: dict[str, tuple[float, dict[str, list[int]]]] = {}
        for file in Path(name).glob("*.json"):
            recorded.update(json.loads(file.read_text(encoding="utf-8")))
    before = read(FILE.read_text(encoding="utf-8")) if words and FILE.exists() else Map()
    after = merged(before, recorded, sources())
    there = tests_there(after)
    for functions in after.files.values():
        for function, tests in functions.items():
            functions[function] = [test for test in tests if test in there]
    FILE.write_text(after.text(), encoding="utf-8")
    return code


def tests_there(known: Map) -> set[str]:
    """Those tests of the map that still exist."""
    files = {test.partition("::")[0] for test in known.seconds}
    there = {name: ROOT / name for name in files if (ROOT / name).exists()}
    return {
        f"{name}::{function.replace('.', '::')}"
        for name, path in there.items()
        for function in functions_of(path.read_text(encoding="utf-8"))
    }


def stale(known: Map, chosen: Iterable[str]) -> Iterator[str]:
    """A line for each function without a record, and for each recorded test that is gone."""
    there = tests_there(known)
    for source in chosen:
        text = (ROOT / source).read_text(encoding="utf-8")
        for name in functions_of(text):
            if name not in known.files.get(source, {}):
                yield f"no recorded test runs {source} {name}"
        for test in known.tests_of(source):
            if test not in there:
                yield f"no longer exists: {test}"


def arguments(files: Sequence[str], folder: str) -> list[str]:
    """The words for pytest that run the tests of source files; ``folder`` gets a list of them."""
    if not FILE.exists():
        return by_words(files)
    known = read(FILE.read_text(encoding="utf-8"))
    tests = {test for name in files for test in known.tests_of(name)} & tests_there(known)
    ranked = sorted(tests, key=known.seconds.__getitem__)
    only = Path(folder, "only.txt")
    only.write_text("\n".join(ranked), encoding="utf-8")
    return [f"--only={only}", *dict.fromkeys(test.partition("::")[0] for test in ranked)]


def by_words(files: Sequence[str]) -> list[str]:
    closest = map_of_words.read(ROOT).closest
    return [*dict.fromkeys(test for name in files for test in closest(name))]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.of", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--run", action="store_true", help="run the tests")
    parser.add_argument("--record", action="store_true", help="record what tests run")
    options = parser.parse_args()
    if options.record:
        return record(options.files)
    known = read(FILE.read_text(encoding="utf-8")) if FILE.exists() else Map()
    files = [_below_root(name) for name in options.files]
    found = [test for name in files for test in known.tests_of(name)]
    if not FILE.exists():
        found = by_words(files)
    if not found:
        parser.error("no test is known to run it: name a file of optilock/, or record its tests")
    if FILE.exists():
        print(*stale(known, files), sep="\n", file=sys.stderr)
    if not options.run:
        print(*dict.fromkeys(found), sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="optilock-of-") as folder:
        words = arguments(files, folder)
        return subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=ROOT).returncode


def _below_root(name: str) -> str:
    path = Path(name).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name


if __name__ == "__main__":
    sys.exit(main())
