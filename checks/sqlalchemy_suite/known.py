"""The tests that may fail: ``known.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

__all__ = ["covers", "differences"]

_LIST = Path(__file__).with_name("known.toml")


def differences(release: str = "") -> dict[str, str]:
    """Test -> why it fails when every session is watched, with one release of SQLAlchemy or any."""
    return {
        entry["test"]: " ".join(entry["reason"].split())
        for entry in tomllib.loads(_LIST.read_text())["differs"]
        if not release or release.startswith(entry.get("sqlalchemy", ""))
    }


def covers(listed: str, test: str) -> bool:
    """Does the name in the list mean this test?"""
    return test == listed or test.startswith(f"{listed}[")
