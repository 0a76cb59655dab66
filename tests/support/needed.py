"""What a machine or a server must have for a test. Under ``CI=true`` it must be there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest
from sqlalchemy import Engine, text

__all__ = ["needed", "two_phases"]


def needed(reason: str) -> NoReturn:
    """Skip the test; under ``CI=true`` what is missing is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def two_phases(engine: Engine) -> None:
    """The server prepares transactions."""
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            if connection.scalar(text("SHOW max_prepared_transactions")) == "0":
                needed("max_prepared_transactions is 0 on this server")
