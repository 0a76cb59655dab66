"""Each test begins with rows on which nobody has conflicted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from optilock import events
from optilock.unit.heat import MEMORY


@pytest.fixture(autouse=True)
def cold() -> Iterator[None]:
    MEMORY.forget()
    yield
    MEMORY.forget()


@pytest.fixture
def retried() -> Iterator[list[BaseException]]:
    """The errors after which a unit has run again."""
    found: list[BaseException] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.Retry):
            found.append(event.error)

    with events.listening(note, written=False):
        yield found
