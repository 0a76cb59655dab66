"""``--reached FOLDER``: write which functions of the library each test calls, for ``tests/of.py``.

A plugin of pytest's, registered by ``tests/conftest.py``. Each process writes a file with a line
for each test: its function, its seconds of processor time, and the functions by their files.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import optilock

__all__ = ["Reached", "function_of"]

_LIBRARY = f"{Path(optilock.__file__).parent}{os.sep}"
_ROOT = Path(optilock.__file__).parents[1]


def function_of(nodeid: str) -> str:
    """The id without parameters."""
    return nodeid.partition("[")[0]


class Reached:
    """The plugin."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"{os.getpid()}.json").open("w", encoding="utf-8")
        self._called: set[CodeType] = set()

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        self._called.add(frame.f_code)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._called = set()
        begin = time.process_time()
        sys.settrace(self._see)
        threading.settrace(self._see)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self._write(item, time.process_time() - begin)

    def _write(self, item: pytest.Item, spent: float) -> None:
        if not isinstance(item, pytest.Function):
            return  # an example of a page, whose id is its line
        called = [code for code in {*self._called} if code.co_filename.startswith(_LIBRARY)]
        functions = {
            (Path(code.co_filename).relative_to(_ROOT).as_posix(), code.co_qualname)
            for code in called
            if not code.co_name.startswith("<")
        }
        line = [function_of(item.nodeid), round(spent, 3), sorted(functions)]
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
