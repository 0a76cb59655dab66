"""What a run ends with: how many tests did not run, and why, a line for each reason.

A plugin of pytest's, registered by ``tests/plugin.py``. Where tests are spread over processes the
processes tell the first one how many they have left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

__all__ = ["LEFT", "MISSING", "skipped_because"]

#: How many tests wait for ``--full``.
LEFT = pytest.StashKey[int]()
#: How many tests were not begun, by the reason: their engine cannot run here.
MISSING = pytest.StashKey[dict[str, int]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        stash = session.config.stash
        session.config.workeroutput.update(left=stash.get(LEFT, 0), missing=stash.get(MISSING, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """xdist's hook: a process has ended. Each of them has looked at all tests."""
    told: Mapping[str, Any] = getattr(node, "workeroutput", {})
    node.config.stash[LEFT], node.config.stash[MISSING] = (
        told.get("left", 0),
        told.get("missing", {}),
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    skipped = skipped_because(terminalreporter.getreports("skipped"))
    skipped.update(config.stash.get(MISSING, {}))
    lines = [f"{count:>6,} skipped: {why}" for why, count in skipped.most_common()]
    if left := config.stash.get(LEFT, 0):
        lines.append(f"{left:>6,} more run with: python -m pytest --full")
    if lines:
        terminalreporter.write_sep("=", "tests that did not run")
        for line in lines:
            terminalreporter.write_line(line)


def skipped_because(reports: Iterable[Any]) -> Counter[str]:
    """How often a reason was given, wherever in the tests that was."""
    return Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in reports)
