"""The pytest fixture ``optilock_faults``.

In the ``conftest.py`` at the top of the tests::

    pytest_plugins = ["optilock.testing.fixtures"]

It is no plug-in that pytest loads by itself, so test runs that do not use it do not import
optilock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine

from optilock.testing.faults import Faults

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["optilock_faults"]


@pytest.fixture
def optilock_faults() -> Iterator[Callable[[Engine | AsyncEngine], Faults]]:
    """Return a function of an engine that gives its :class:`~optilock.testing.Faults`.

    They end with the test, which fails if an armed fault was not met.
    """
    with ExitStack() as stack:

        def faults_of(engine: Engine | AsyncEngine) -> Faults:
            return stack.enter_context(Faults(engine))

        yield faults_of
