"""``--reached=FOLDER``: write which lines of the library each test runs, for :mod:`tests.of`.

A plugin of pytest's, registered by ``tests/plugin.py``. It needs Python 3.12: ``sys.monitoring``
(PEP 669) tells each line once a test, so that a run takes hardly longer. Each process writes a
file: of each test function its seconds of processor time, and its lines by their files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

__all__ = ["Reached", "function_of"]

_ROOT = f"{Path(__file__).resolve().parents[2]}{os.sep}"
_LIBRARY = f"{_ROOT}optilock{os.sep}"


def function_of(nodeid: str) -> str:
    """The id without parameters."""
    return nodeid.partition("[")[0]


class Reached:
    """The plugin."""

    def __init__(self, folder: Path) -> None:
        self.monitoring: Any = getattr(sys, "monitoring", None)
        if self.monitoring is None:
            raise pytest.UsageError("--reached needs Python 3.12 or newer, for sys.monitoring")
        folder.mkdir(exist_ok=True)
        self.file = folder / f"{os.getpid()}.json"
        self.seconds: dict[str, float] = defaultdict(float)
        self.lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.test = ""
        tool = self.monitoring.COVERAGE_ID
        self.monitoring.use_tool_id(tool, "which tests run a line")
        self.monitoring.register_callback(tool, self.monitoring.events.LINE, self.line)
        self.monitoring.set_events(tool, self.monitoring.events.LINE)

    def line(self, code: CodeType, number: int) -> object:
        if self.test and code.co_filename.startswith(_LIBRARY):
            self.lines[self.test][code.co_filename].add(number)
        return self.monitoring.DISABLE  # until the next test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not isinstance(item, pytest.Function):
            return (yield)  # an example of a page, whose id is its line
        self.test = function_of(item.nodeid)
        self.monitoring.restart_events()
        begin = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[self.test] += time.process_time() - begin
            self.test = ""

    def pytest_sessionfinish(self) -> None:
        self.monitoring.set_events(self.monitoring.COVERAGE_ID, 0)
        told = {
            test: (
                self.seconds[test],
                {file.removeprefix(_ROOT): sorted(lines) for file, lines in files.items()},
            )
            for test, files in self.lines.items()
        }
        self.file.write_text(json.dumps(told), encoding="utf-8")
