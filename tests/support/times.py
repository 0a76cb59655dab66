"""``--times``: what the tests of each folder took, and which three took most.

A plugin of pytest's, registered by ``tests/conftest.py``. Processor time is that of the test's own
process and of the programs that the test started and waited for; the difference to the clock is
waiting, and the turns of other processes. Where tests are spread over processes, each tells the
first one what it has measured.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["Spent", "Times", "folder_of", "table"]

#: The tests whose names are printed.
_NAMED = 3


class Spent(NamedTuple):
    """Seconds."""

    processor: float = 0.0
    clock: float = 0.0

    def since(self, begin: Spent) -> Spent:
        return Spent(self.processor - begin.processor, self.clock - begin.clock)


def now() -> Spent:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + children.ru_utime + children.ru_stime
    return Spent(own, time.perf_counter())


class Times:
    """The plugin."""

    def __init__(self) -> None:
        self.of_tests: list[tuple[str, float, float]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begin = now()
        try:
            return (yield)
        finally:
            self.of_tests.append((item.nodeid, *now().since(begin)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["times"] = self.of_tests

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """xdist's hook: a process has ended."""
        told = getattr(node, "workeroutput", {}).get("times", ())
        self.of_tests += [(nodeid, processor, clock) for nodeid, processor, clock in told]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_sep("=", "seconds of each folder")
        for line in table(self.of_tests):
            terminalreporter.write_line(line)


def folder_of(nodeid: str) -> str:
    """``tests/database/flush`` of a test in it; the file itself where it lies in no folder."""
    path = Path(nodeid.partition("::")[0])
    return "/".join(path.parts[:3] if len(path.parts) > 3 else path.parts[:2])


def table(of_tests: list[tuple[str, float, float]]) -> list[str]:
    """The folders, the one with most processor time first."""
    folders = defaultdict(list)
    for test in of_tests:
        folders[folder_of(test[0])].append(test)
    rows = []
    for folder, tests in folders.items():
        processor, clock = (sum(test[number] for test in tests) for number in (1, 2))
        dearest = sorted(tests, key=lambda test: -test[1])[:_NAMED]
        named = ", ".join(f"{nodeid.rpartition('/')[2]} {cpu:.1f}" for nodeid, cpu, _ in dearest)
        numbers = f"{processor:>9.1f} {clock:>6.1f} {len(tests):>6}"
        rows.append((processor, f"{numbers}  {folder}: {named}"))
    return ["processor  clock  tests", *(line for _, line in sorted(rows, reverse=True))]
