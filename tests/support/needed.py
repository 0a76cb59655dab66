"""What a machine or a server must have for a test. Under ``CI=true`` it must be there."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest
from sqlalchemy import Engine, text

__all__ = ["needed", "program", "two_phases"]


def needed(reason: str) -> NoReturn:
    """Skip the test; under ``CI=true`` what is missing is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str) -> str:
    """Where it is."""
    found = shutil.which(name)
    return found or needed(f"{name} is not on PATH: install your system's package {name}")


def two_phases(engine: Engine) -> None:
    """The server prepares transactions."""
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            if connection.scalar(text("SHOW max_prepared_transactions")) == "0":
                needed("max_prepared_transactions is 0 on this server")
