"""Each test begins with rows on which nobody has conflicted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from optilock.unit.heat import MEMORY


@pytest.fixture(autouse=True)
def cold() -> Iterator[None]:
    MEMORY.forget()
    yield
    MEMORY.forget()
