"""One run of SQLAlchemy's tests: pytest in a process of its own, with the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from checks.sqlalchemy_suite.verdict import Run

__all__ = ["run"]

_REPOSITORY = Path(__file__).parents[2]


def run(source: Path, url: str, files: Sequence[str], *, workers: int) -> Run:
    """Run ``files`` of the source distribution ``source`` on the database at ``url``.

    Raises ``SystemExit`` with pytest's words where it could not run them.
    """
    with tempfile.TemporaryDirectory(prefix="optilock-suite-") as folder:
        report = Path(folder, "report.json")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, f"-n{workers}", "--dburi", url, *files],
            cwd=source,
            env=_environment(report),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise SystemExit(f"SQLAlchemy's tests could not be run:\n{done.stdout[-10_000:]}")
        told = json.loads(report.read_text())
    return Run(
        passed=tuple(told["passed"]),
        failed=told["failed"],
        skipped=told["skipped"],
        **told["counts"],
    )


_OPTIONS = ("-p", "checks.sqlalchemy_suite.plugin", "-p", "no:cacheprovider", "-q", "--tb=native")


def _environment(report: Path) -> dict[str, str]:
    """What is imported is the installed SQLAlchemy, not the one in the source distribution."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {
        **kept,
        "PYTHONPATH": str(_REPOSITORY),
        # SQLAlchemy's conftest.py puts its own lib/ on the path unless there is no user site.
        "PYTHONNOUSERSITE": "1",
        "OPTILOCK_SUITE_REPORT": str(report),
    }
