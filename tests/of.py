"""Find the tests that protect a source file, or a function of it.

    python -m tests.of optilock/_watched/guard/batch.py          print them, the fastest first
    python -m tests.of --run optilock/_watched/guard/batch.py    run them
    python -m tests.of optilock/_mapped.py::Versioned.touch      those of one function
    python -m tests.of --record                                 make the map again (Python 3.12)

``tests/map.json`` is the map. It was made by a default run that noted the lines that each test ran
(:mod:`tests.support.reached`). Of each function it has the tests that run all of its lines together
four times, as far as there are so many: rather quick ones, and those that run little else.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["MAP", "ROOT", "Reach", "choose", "functions_of", "read", "tests_of"]

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "tests" / "map.json"
#: How many tests of the map run a line, where there are so many.
_TIMES = 4
#: Seconds that any test costs beside its own.
_EACH = 0.1


class Reach(NamedTuple):
    """What a test function needs, and the lines that it runs."""

    seconds: float
    #: Of each source file.
    lines: Mapping[str, Sequence[int]]


def functions_of(text: str) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield the qualified name of each function, with the lines of its body."""
    yield from _functions(ast.parse(text), ())


def _functions(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, frozenset[int]]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            body = inner.body
            yield (
                ".".join((*outer, inner.name)),
                frozenset(range(body[0].lineno, (body[-1].end_lineno or 0) + 1)),
            )
        elif isinstance(inner, ast.ClassDef):
            yield from _functions(inner, (*outer, inner.name))
        else:
            yield from _functions(inner, outer)


def choose(lines: Iterable[int], source: str, tests: Mapping[str, Reach]) -> list[str]:
    """Return tests that together run each of the lines four times, the most useful first."""
    ran = {name: {*lines} & {*test.lines.get(source, ())} for name, test in tests.items()}
    ran = {name: some for name, some in ran.items() if some}
    worth = {name: _worth(tests[name], source) for name in ran}
    missing = {line: _TIMES for some in ran.values() for line in some}
    found: list[str] = []
    while missing and ran:
        best = max(ran, key=lambda name: (len(ran[name] & missing.keys()) * worth[name], name))
        useful = ran.pop(best) & missing.keys()
        if not useful:
            break
        found.append(best)
        for line in useful:
            missing[line] -= 1
            if not missing[line]:
                del missing[line]
    return found


def _worth(test: Reach, source: str) -> float:
    """More for a quick test, and for one that runs this file and few others."""
    share = len(test.lines[source]) / sum(map(len, test.lines.values()))
    return float(share**0.5 / (_EACH + test.seconds))


def read(file: Path = MAP) -> dict[str, dict[str, list[str]]]:
    """Return the tests of each function of each source file."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    names: list[str] = stored["tests"]
    return {
        source: {function: [names[at] for at in places] for function, places in of.items()}
        for source, of in stored["sources"].items()
    }


def tests_of(named: Sequence[str]) -> list[str]:
    """Return the ids of the test functions of these files and functions, the fastest first."""
    stored = json.loads(MAP.read_text(encoding="utf-8"))
    found = set[int]()
    for one in named:
        source, _, function = one.partition("::")
        of = stored["sources"].get(source, {})
        found.update(*([of.get(function, [])] if function else of.values()))
    return [stored["tests"][place] for place in sorted(found)]


def write(tests: Mapping[str, Reach], file: Path = MAP) -> None:
    """Write the map of these tests."""
    by_source: dict[str, dict[str, Reach]] = defaultdict(dict)
    for name, test in tests.items():
        for source in test.lines:
            by_source[source][name] = test
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "optilock").rglob("*.py"))
    }
    chosen = {
        source: {
            function: choose(lines, source, by_source[source])
            for function, lines in functions_of(text)
        }
        for source, text in sources.items()
    }
    used = {name for of in chosen.values() for some in of.values() for name in some}
    order = sorted(used, key=lambda name: (tests[name].seconds, name))
    place = {name: at for at, name in enumerate(order)}
    rows = [
        f"{json.dumps(source)}: {json.dumps(_places(of, place))}"
        for source, of in chosen.items()
        if of
    ]
    lines = ['{"tests": [', ",\n".join(map(json.dumps, order)), '],\n"sources": {']
    file.write_text("\n".join([*lines, ",\n".join(rows), "}}\n"]), encoding="utf-8")


def _places(of: Mapping[str, list[str]], place: Mapping[str, int]) -> dict[str, list[int]]:
    return {function: sorted(place[one] for one in some) for function, some in of.items()}


def record(options: Sequence[str]) -> int:
    """Run the tests, and write the map; return pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="optilock-reached-") as folder:
        ended = _pytest(f"--reached={folder}", *options)
        tests: dict[str, Reach] = {}
        for part in Path(folder).glob("*.json"):
            for name, (seconds, lines) in json.loads(part.read_text(encoding="utf-8")).items():
                tests[name] = Reach(seconds, lines)
    if ended in (0, 1):  # what fails has run lines, too
        write(tests)
    return ended


def arguments(tests: Sequence[str], folder: Path) -> list[str]:
    """Return pytest's arguments for the executions that a default run has of these functions."""
    listed = folder / "functions.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    return [f"--functions={listed}", *sorted({test.partition("::")[0] for test in tests})]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.of", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("named", nargs="*", metavar="FILE[::FUNCTION]")
    parser.add_argument("--run", action="store_true", help="run the tests")
    parser.add_argument("--record", action="store_true", help="run all tests, and write the map")
    options, others = parser.parse_known_args()  # the others are pytest's
    if options.record:
        return record(others)
    if others and not options.run:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    found = tests_of([_below_root(name) for name in options.named])
    if not found:
        parser.error("no test is known for it: name a file of optilock/, or record the map again")
    if not options.run:
        print(*found, sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="optilock-tests-") as folder:
        return _pytest("-q", *others, *arguments(found, Path(folder)))


def _pytest(*options: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT).returncode


def _below_root(name: str) -> str:
    file, colons, function = name.partition("::")
    path = Path(file).resolve()
    below = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else file
    return f"{below}{colons}{function}"


if __name__ == "__main__":
    sys.exit(main())
