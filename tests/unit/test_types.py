"""A type checker understands every public call: ``tests/typing/api.py``, read by mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_mypy_in_strict_mode_infers_what_api_py_says() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typing/api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
