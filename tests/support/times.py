"""``--times``: what the tests of each folder took; ``--budget``: whether that is too much.

A plugin of pytest's, registered by ``tests/plugin.py``. Processor time is that of the test's own
process and of the programs that the test started and waited for; the difference to the clock is
waiting, and the turns of other processes. Where tests are spread over processes, each tells the
first one what it has measured.

``tests/budget.toml`` has the budget of each folder for a default run on a bare machine: tests,
lines and, for folders of five seconds and more, processor time on a quiet core. With ``--budget``
the run fails if a folder needs more, and names its dearest tests. A busy core does less in a second
than a quiet one. So a piece of Python whose duration is known is timed now and then, and the
seconds are divided by how much slower it was.
"""

from __future__ import annotations

import resource
import statistics
import time
import tomllib
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["Spent", "Timed", "Times", "complaints", "folder_of", "table"]

ROOT = Path(__file__).resolve().parents[2]
#: The tests whose names are printed.
_NAMED = 3
#: How much of the budget is allowed. Two runs of one tree, on a busy machine and on a busier one,
#: differed by 1.4 in the seconds of all folders.
_MORE = {"tests": 1.1, "lines": 1.1, "seconds": 2.0}
#: Seconds that the piece of Python takes on a quiet core (CPython 3.11), and tests between two.
_QUIET, _BETWEEN = 0.007, 100


class Spent(NamedTuple):
    """Seconds."""

    processor: float = 0.0
    clock: float = 0.0

    def since(self, begin: Spent) -> Spent:
        return Spent(self.processor - begin.processor, self.clock - begin.clock)


class Timed(NamedTuple):
    nodeid: str
    processor: float
    clock: float


def now() -> Spent:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + children.ru_utime + children.ru_stime
    return Spent(own, time.perf_counter())


def slowness() -> float:
    """How many times as long the piece of Python takes as on a quiet core."""
    begin, total = time.thread_time(), 0
    for number in range(100_000):
        total += number * number % 7
    return (time.thread_time() - begin) / _QUIET


class Times:
    """The plugin; with ``budget`` it fails the run."""

    def __init__(self, *, budget: bool) -> None:
        self.budget = budget
        self.tests: list[Timed] = []
        self.slower: list[float] = []
        self.said: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.budget and len(self.tests) % _BETWEEN == 0:
            self.slower.append(slowness())
        begin = now()
        try:
            return (yield)
        finally:
            self.tests.append(Timed(item.nodeid, *now().since(begin)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """xdist's hook: a process has ended."""
        tests, slower = getattr(node, "workeroutput", {}).get("times", ((), ()))
        self.tests += [Timed(*test) for test in tests]
        self.slower += slower

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            # execnet sends plain tuples, no class of ours
            session.config.workeroutput["times"] = (
                [tuple(test) for test in self.tests],
                self.slower,
            )
        elif self.budget and self.tests:
            budget = tomllib.loads((ROOT / "tests" / "budget.toml").read_text(encoding="utf-8"))
            slower = max(1.0, statistics.fmean(self.slower))
            self.said = [*complaints(self.tests, budget, slower, _lines_of(budget))]
            if self.said and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_sep("=", "seconds of each folder")
        for line in table(self.tests):
            terminalreporter.write_line(line)
        if self.slower:
            slower = statistics.fmean(self.slower)
            terminalreporter.write_line(f"cores were {slower:.2f} times as slow as quiet ones")
        for line in self.said:
            terminalreporter.write_line(line)


def folder_of(nodeid: str) -> str:
    """``tests/database/flush`` of a test in it; the file itself where it lies in no folder."""
    path = Path(nodeid.partition("::")[0])
    return "/".join(path.parts[:3] if len(path.parts) > 3 else path.parts[:2])


def _of_folders(tests: Iterable[Timed]) -> dict[str, list[Timed]]:
    folders = defaultdict(list)
    for test in tests:
        folders[folder_of(test.nodeid)].append(test)
    return folders


def table(tests: Iterable[Timed]) -> list[str]:
    """The folders, the one with most processor time first, each with its dearest tests."""
    rows = []
    for folder, inside in _of_folders(tests).items():
        processor, clock = (sum(test[number] for test in inside) for number in (1, 2))
        numbers = f"{processor:>9.1f} {clock:>6.1f} {len(inside):>6}"
        rows.append((processor, f"{numbers}  {folder}: {_dearest(inside)}"))
    return ["processor  clock  tests", *(line for _, line in sorted(rows, reverse=True))]


def complaints(
    tests: Iterable[Timed],
    budget: Mapping[str, Mapping[str, float]],
    slower: float,
    lines: Mapping[str, int],
) -> Iterable[str]:
    """A sentence for each folder that needs more than its budget, or has none."""
    for folder, inside in sorted(_of_folders(tests).items()):
        if not folder.startswith(("tests/", "apps/", "checks/")):
            continue
        if folder not in budget:
            yield f"{folder} has no row in tests/budget.toml: add one with what it needs."
            continue
        needed = {
            "tests": len(inside),
            "seconds": sum(test.processor for test in inside) / slower,
            "lines": lines.get(folder, 0),
        }
        for what, most in budget[folder].items():
            if needed[what] > _MORE[what] * most:
                yield (
                    f"{folder} needs {needed[what]:,.0f} {what}, and its budget in"
                    f" tests/budget.toml has {most:,.0f}. Dearest: {_dearest(inside)}."
                )


def _dearest(tests: Iterable[Timed]) -> str:
    named = sorted(tests, key=lambda test: -test.processor)[:_NAMED]
    return ", ".join(f"{_short(one.nodeid)} {one.processor:.1f}" for one in named)


def _short(nodeid: str) -> str:
    return nodeid.rpartition("/")[2]


def _lines_of(folders: Iterable[str]) -> dict[str, int]:
    return {
        folder: sum(len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob("*.py"))
        for folder in folders
    }
