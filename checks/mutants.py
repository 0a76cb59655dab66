"""Break the library at random, one place at a time, and see whether its tests notice.

::

    python -m checks.mutants                               # 60 places, by the day's seed
    python -m checks.mutants --seed 4 --count 30 --bare    # by the whole default run
    python -m checks.mutants --seed 4 --only 7 12          # some of them again

A *mutant* is a copy of the library in which one condition is turned round, one operand, call or
result is missing, or one constant is another. Each room of ``optilock/`` has as many as it has
lines. The tests that run are those that ``python -m tests.of`` names for the file. A mutant that
survives is a promise without a test, or a condition that no caller needs. The checkout is copied
before, and stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.of import arguments, tests_of

__all__ = ["Mutant", "mutants_of", "sample"]

ROOT = Path(__file__).resolve().parents[1]
#: Seconds after which the tests of one mutant hang. It is noticed, then.
HANGS = 600
_OPPOSITE = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
#: Fields of nodes that say nothing about what a function does.
_LEFT_OUT = {"annotation", "returns", "decorator_list", "args", "type_params"}


@dataclass(frozen=True)
class Mutant:
    """``source`` with ``new`` in place of the bytes from ``begin`` to ``end``."""

    source: str
    line: int
    kind: str
    begin: int
    end: int
    new: str

    def applied_to(self, text: bytes) -> bytes:
        return text[: self.begin] + self.new.encode() + text[self.end :]

    def described(self, text: bytes) -> str:
        old = " ".join(text[self.begin : self.end].decode().split())
        return f"{self.source}:{self.line} {self.kind}: {old} -> {self.new}"


def mutants_of(source: str, text: str) -> Iterator[Mutant]:
    """All of a file; none outside of functions, in errors that are raised, and in their texts."""
    code = _Code(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for place, kind, new in _changes_in(code, node.body):
                yield Mutant(source, place.lineno, kind, *code.place(place), new)


class _Code:
    """A text whose parts are found by their nodes, in bytes."""

    def __init__(self, text: str) -> None:
        self._bytes, self._begins = text.encode(), [0]
        for line in self._bytes.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    def place(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._begins[node.lineno - 1] + node.col_offset
        return begin, self._begins[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr) -> str:
        begin, end = self.place(node)
        return self._bytes[begin:end].decode()


def _changes_in(code: _Code, body: Sequence[ast.AST]) -> Iterator[tuple[ast.expr, str, str]]:
    for node in body:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        yield from _changes_of(code, node)
        inner = [value for name, value in ast.iter_fields(node) if name not in _LEFT_OUT]
        if isinstance(node, ast.Call):
            inner.append(node.args)
        for value in inner:
            parts = value if isinstance(value, list) else [value]
            yield from _changes_in(code, [part for part in parts if isinstance(part, ast.AST)])


def _changes_of(code: _Code, node: ast.AST) -> Iterator[tuple[ast.expr, str, str]]:
    """The node to replace, the kind of the change, and the new text."""
    old = code.of
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield node, "opposite", f"({old(left)} {_OPPOSITE[type(operator)]} {old(right)})"
        case ast.BoolOp(op=operator, values=values):
            word = " and " if isinstance(operator, ast.And) else " or "
            for place in range(len(values)):
                rest = [f"({old(one)})" for one in (*values[:place], *values[place + 1 :])]
                yield node, "missing operand", f"({word.join(rest)})"
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, "always", "True"
            yield test, "never", "False"
        case ast.comprehension(ifs=[*tests]):
            yield from ((test, "always", "True") for test in tests)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "opposite", f"bool({old(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, "other constant", str(not value)
        case ast.Constant(value=int(value)):
            yield node, "other constant", str(value + 1)
        case ast.Constant(value=str(value)) if value and '"""' not in old(node):
            yield node, "other constant", repr(value + "x")
        case ast.Expr(value=(ast.Call() | ast.Await()) as call):
            yield call, "missing call", "None"
        case ast.Return(value=ast.expr() as value) if old(value) != "None":
            yield value, "missing result", "None"


def sample(root: Path, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants; those of a room by its share of the lines, and each kind as often."""
    chance = random.Random(seed)
    rooms = defaultdict(list)
    for path in sorted((root / "optilock").rglob("*.py")):
        parts = path.relative_to(root / "optilock").parts[:-1]
        rooms[parts[: 2 if parts[:1] in (("_watched",), ("dialects",)) else 1]].append(path)
    lines = {
        room: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        for room, paths in rooms.items()
    }
    found: list[Mutant] = []
    due = 0.0
    for room, paths in sorted(rooms.items()):
        due += count * lines[room] / sum(lines.values())
        kinds = defaultdict(list)
        for path in paths:
            name = path.relative_to(root).as_posix()
            for mutant in mutants_of(name, path.read_text(encoding="utf-8")):
                kinds[mutant.kind].append(mutant)
        while due >= 0.5 and kinds:
            found.append(chance.choice(kinds[chance.choice(sorted(kinds))]))
            due -= 1
    return found


def noticed(copy: Path, mutant: Mutant, tests: Sequence[str]) -> bool:
    """Does a test fail, or hang, while the mutant stands in the copy?"""
    path = copy / mutant.source
    before = path.read_bytes()
    path.write_bytes(mutant.applied_to(before))
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
    folders = os.pathsep.join(map(str, (copy, copy / "apps")))
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": folders},
            timeout=HANGS,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(before)
    if done.returncode == 5:  # no test was found
        return False
    if done.returncode in (0, 1, 2):  # 2: a file could not be imported, or a test was interrupted
        return done.returncode != 0
    if done.returncode == 4 and "while loading conftest" in done.stderr:  # nothing can be imported
        return True
    raise SystemExit(f"pytest could not be run:\n{done.stdout[-10_000:]}{done.stderr[-10_000:]}")


def main() -> int:
    """0 if enough of the mutants were noticed, 1 otherwise."""
    options = _options()
    survivors = []
    with tempfile.TemporaryDirectory(prefix="optilock-mutants-") as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
        shutil.copytree(ROOT, copy, ignore=ignored)
        chosen = [*enumerate(sample(copy, options.count, options.seed))]
        chosen = [(n, one) for n, one in chosen if not options.only or n in options.only]
        for number, mutant in chosen:
            text = mutant.described((copy / mutant.source).read_bytes())
            if options.list:
                print(f"{number:3} {text}")
                continue
            began = time.monotonic()
            tests = ["tests", "apps/tests", "checks"]
            if not options.bare:
                tests = ["-n0", *arguments(tests_of([mutant.source]), Path(folder))]
            killed = noticed(copy, mutant, tests)
            if not killed:
                survivors.append(mutant)
            word = "noticed " if killed else "survived"
            print(f"{number:3} {word} {time.monotonic() - began:5.0f} s  {text}", flush=True)
    if options.list:
        return 0
    share = 1 - len(survivors) / len(chosen)
    print(f"seed {options.seed}: {len(chosen) - len(survivors)} of {len(chosen)} noticed")
    return 0 if share >= options.at_least else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m checks.mutants", description=main.__doc__)
    today = int(datetime.date.today().strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, help="of the choice; default: the day")
    parser.add_argument("--count", type=int, default=60, help="how many")
    parser.add_argument("--only", type=int, nargs="*", help="these numbers of them")
    parser.add_argument("--bare", action="store_true", help="run all tests of the default run")
    parser.add_argument("--list", action="store_true", help="print them and run nothing")
    parser.add_argument("--at-least", type=float, default=0.8, metavar="SHARE", help="default: 0.8")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
