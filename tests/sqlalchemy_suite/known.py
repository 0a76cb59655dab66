"""The tests that may fail: ``known.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

__all__ = ["covers", "differences"]

_LIST = Path(__file__).with_name("known.toml")


def differences() -> dict[str, str]:
    """Test -> why it fails when every session is watched."""
    listed = tomllib.loads(_LIST.read_text())["differs"]
    return {entry["test"]: " ".join(entry["reason"].split()) for entry in listed}


def covers(listed: str, test: str) -> bool:
    """Does the name in the list mean this test?"""
    return test == listed or test.startswith(f"{listed}[")
