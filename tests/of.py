"""Run the tests that protect a source file: those that were seen to call its functions.

    python -m tests.of optilock/watched/guard/batch.py      run them, the quickest first
    python -m tests.of --list optilock/mapped.py            print them with their seconds
    python -m tests.of --record                             record the map again, by a default run
    python -m tests.of --record tests/database/flush        record only these tests again

``tests/map.json`` is the record: for each function of the library the test functions that call it,
those first that call least beside it, because they fail for few other reasons. What a test does in
programs that it starts is not seen. ``tests/unit/test_map.py`` fails when a source file has no row,
or when a test of the map no longer exists: record then the tests of your change, or all of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FILE", "ROOT", "Map", "read"]

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "map.json"
#: Tests that are run for a file, and kept for a function.
SHOWN, KEPT = 20, 8


@dataclass
class Map:
    """``seconds`` of each test function; of each source file the tests of its functions."""

    seconds: dict[str, float] = field(default_factory=dict)
    files: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def tests_of(self, source: str, count: int = SHOWN) -> list[str]:
        """The closest test of each function, then the second one of each; the quickest first."""
        functions = [*self.files.get(source, {}).values()]
        ranked = [
            tests[place] for place in range(KEPT) for tests in functions if place < len(tests)
        ]
        chosen = [*dict.fromkeys(ranked)]
        first = len({tests[0] for tests in functions if tests})
        return sorted(chosen[: max(count, first)], key=self.seconds.__getitem__)

    def text(self) -> str:
        """A line for each source file, with the numbers of the tests."""
        used = {
            test
            for functions in self.files.values()
            for tests in functions.values()
            for test in tests
        }
        tests = sorted(used)
        number = {test: place for place, test in enumerate(tests)}
        rows = [
            f"  {json.dumps(source)}: "
            + json.dumps(
                {
                    name: [number[test] for test in found]
                    for name, found in sorted(functions.items())
                }
            )
            for source, functions in sorted(self.files.items())
        ]
        known = [f"  {json.dumps(test)}: {self.seconds[test]:.2f}" for test in tests]
        tested = ",\n".join(known)
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


def recorded(folder: Path) -> tuple[dict[str, float], dict[str, set[tuple[str, str]]]]:
    """What the processes of a run wrote: seconds and functions of each test function."""
    seconds: dict[str, float] = {}
    reached: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for file in folder.glob("*.json"):
        for line in file.read_text(encoding="utf-8").splitlines():
            test, spent, functions = json.loads(line)
            seconds[test] = min(spent, seconds.get(test, spent))
            reached[test].update((source, name) for source, name in functions)
    return seconds, reached


def merged(
    before: Map, seconds: Mapping[str, float], reached: Mapping[str, set[tuple[str, str]]]
) -> Map:
    """The tests that were run again replace what was known of them."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    width = {test: len(functions) for test, functions in reached.items()}
    for source, functions in before.files.items():
        for name, tests in functions.items():
            found[source, name] |= {test for test in tests if test not in reached}
    for test, places in reached.items():
        for place in places:
            found[place].add(test)
    spent = {**before.seconds, **seconds}
    files: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (source, name), tests in found.items():
        # What was not run again was among the closest before.
        closest = sorted(tests, key=lambda test: (width.get(test, 0), spent[test], test))
        if closest and (ROOT / source).exists():
            files[source][name] = closest[:KEPT]
    return Map(spent, files)


def record(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="optilock-map-") as name:
        command = [sys.executable, "-m", "pytest", "-q", f"--reached={name}", *words]
        code = subprocess.run(command, cwd=ROOT).returncode
        before = read(FILE.read_text(encoding="utf-8")) if words and FILE.exists() else Map()
        FILE.write_text(merged(before, *recorded(Path(name))).text(), encoding="utf-8")
    return code


def run(tests: Iterable[str]) -> int:
    chosen = [*tests]
    files = dict.fromkeys(test.partition("::")[0] for test in chosen)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as only:
        only.write("\n".join(chosen))
        only.flush()
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--only={only.name}", *files]
        return subprocess.run(command, cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.of", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the tests and do not run them")
    parser.add_argument("--record", action="store_true", help="record what tests call")
    options = parser.parse_args()
    if options.record:
        return record(options.files)
    known = read(FILE.read_text(encoding="utf-8"))
    tests = dict.fromkeys(
        test for name in options.files for test in known.tests_of(_below_root(name))
    )
    if not tests:
        parser.error("no test is known to call it: name a file of optilock/, or record its tests")
    if options.list:
        print(*(f"{known.seconds[test]:6.2f} {test}" for test in tests), sep="\n")
        return 0
    return run(tests)


def _below_root(name: str) -> str:
    path = Path(name).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name


if __name__ == "__main__":
    sys.exit(main())
