"""Fixtures: servers that are not optilock's, and a line that loses answers. See :mod:`loopback`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from loopback import Store, served


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store() -> Iterator[Callable[[str], Store]]:
    """Start a server of one kind."""
    with ExitStack() as servers:
        yield lambda kind: servers.enter_context(served(kind))
