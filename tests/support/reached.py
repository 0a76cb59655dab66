"""``--reached FOLDER``: write which lines of the library each test runs, for :mod:`tests.of`.

A plugin of pytest's, registered by ``tests/conftest.py``. It needs coverage.py. Each process writes
a file: of each test function its seconds of processor time, and its lines by their files.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

import optilock

__all__ = ["Reached", "function_of"]

_ROOT = Path(optilock.__file__).parents[1]


def function_of(nodeid: str) -> str:
    """The id without parameters."""
    return nodeid.partition("[")[0]


class Reached:
    """The plugin."""

    def __init__(self, folder: Path) -> None:
        from coverage import Coverage

        folder.mkdir(exist_ok=True)
        self.file = folder / f"{os.getpid()}.json"
        self.seconds: dict[str, float] = defaultdict(float)
        # SQLAlchemy's asyncio half runs the library in greenlets.
        self.lines = Coverage(
            data_file=None,
            config_file=False,
            source=[str(_ROOT / "optilock")],
            concurrency=["thread", "greenlet"],
        )

    def pytest_sessionstart(self) -> None:
        self.lines.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not isinstance(item, pytest.Function):
            return (yield)  # an example of a page, whose id is its line
        test = function_of(item.nodeid)
        self.lines.switch_context(test)
        begin = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[test] += time.process_time() - begin
            self.lines.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self.lines.stop()
        data = self.lines.get_data()
        tests: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in data.measured_files():
            source = Path(file).relative_to(_ROOT).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in filter(None, contexts):
                    tests[test][source].append(line)
        told = {test: (self.seconds[test], lines) for test, lines in tests.items()}
        self.file.write_text(json.dumps(told), encoding="utf-8")
