"""What a run ends with: how many tests did not run, and why, a line for each reason.

A plugin of pytest's, registered by ``tests/conftest.py``. Where tests are spread over processes the
processes tell the first one how many they have left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

__all__ = ["LEFT", "skipped_because"]

#: How many tests wait for ``--full``.
LEFT = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """xdist's hook: a process has ended."""
    left: Mapping[str, int] = getattr(node, "workeroutput", {})
    node.config.stash[LEFT] = left.get("left", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = [
        f"{count:>6,} skipped: {why}"
        for why, count in skipped_because(terminalreporter.getreports("skipped")).most_common()
    ]
    if left := config.stash.get(LEFT, 0):
        lines.append(f"{left:>6,} more run with: python -m pytest --full")
    if lines:
        terminalreporter.write_sep("=", "tests that did not run")
        for line in lines:
            terminalreporter.write_line(line)


def skipped_because(reports: Iterable[Any]) -> Counter[str]:
    """How often a reason was given, wherever in the tests that was."""
    return Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in reports)
