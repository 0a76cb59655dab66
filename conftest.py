"""Options of all tests, whose fixtures are in tests/plugin.py. Examples in pages are tests, too.

apps/tests/tutorial runs the numbered pages of the tutorial.

The Python blocks of a file run in order, in one namespace and in a temporary working directory,
both new for each file. A block that is not to be run stands under ``<!-- skip: next -->``, or is
fenced as ``text``. With pytest-xdist, ``--dist loadfile`` keeps the blocks of a file together.
"""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from optilock.exactly_once.keys import option_in_use

#: A source tree that is not installed has no entry point.
_LOADED = any(one.name == "optilock" for one in entry_points(group="pytest11"))
pytest_plugins = ["tests.plugin", *([] if _LOADED else ["optilock.pytest_plugin"])]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("optilock's own tests")
    group.addoption(
        "--full",
        action="store_true",
        help="each pair of an engine, its modes and parameters; slow tests; more tries of chance",
    )
    group.addoption("--product", action="store_true", help="every combination of them")
    group.addoption(
        "--write-ids", type=Path, metavar="FILE", help="write the ids of the tests that are run"
    )
    group.addoption(
        "--not-in", type=Path, metavar="FILE", help="leave out the tests whose ids are in the file"
    )
    group.addoption(
        "--functions", type=Path, metavar="FILE", help="only the test functions that the file names"
    )
    group.addoption(
        "--reached", type=Path, metavar="FOLDER", help="write which lines each test runs (3.12)"
    )
    group.addoption(
        "--part",
        metavar="K/N",
        help="the Kth of N parts of the test functions",
    )
    group.addoption("--times", action="store_true", help="end with the time of each folder")
    group.addoption(
        "--budget", action="store_true", help="fail if a folder needs more than tests/budget.toml"
    )


def _enter(namespace: dict[str, Any]) -> None:
    folder = tempfile.TemporaryDirectory(prefix="optilock-docs-")
    namespace["__name__"] = "__main__"  # frameworks ask where a function stands
    namespace["_leave"] = (Path.cwd(), folder)
    os.chdir(folder.name)


def _leave(namespace: dict[str, Any]) -> None:
    option_in_use.seen = False  # for `optilock check` on another page
    for value in namespace.values():
        if isinstance(value, Engine):
            value.dispose()
    back, folder = namespace["_leave"]
    os.chdir(back)
    folder.cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=[
        *("README.md", "docs/*.md", "docs/how-to/*/*.md", "docs/reference/*.md"),
        *("docs/explanation/*.md", "docs/cookbook/*.md", "docs/coming-from/*.md"),
        *("docs/tutorial/web.md", "docs/tutorial/wiki.md"),
    ],
    setup=_enter,
    teardown=_leave,
).pytest()
