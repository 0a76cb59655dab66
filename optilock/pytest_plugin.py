"""The pytest plug-in: fixtures, and ``--optilock-explore-limit``.

Each test begins without hot rows: those that conflicts of another test have made hot are forgotten.

pytest loads it by itself where optilock is installed. It imports SQLAlchemy when a test first uses
one of its fixtures, so other test runs do not pay for it.

=====================  =============================================================================
``explore``            :func:`optilock.testing.explore` with the limit of the command line
``optilock_faults``    a function of an engine that gives its :class:`optilock.testing.Faults`
``optilock_hot_rows``  forgets the hot rows after each test, without being asked for
=====================  =============================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from optilock.testing import Exploration, Faults

__all__ = ["explore", "optilock_faults", "optilock_hot_rows", "pytest_addoption"]

_LIMIT = "--optilock-explore-limit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("optilock").addoption(
        _LIMIT,
        type=int,
        metavar="ORDERS",
        help="the most orders that the fixture explore runs of one set of units (5000)",
    )


@pytest.fixture
def explore(request: pytest.FixtureRequest) -> Callable[..., Exploration]:
    """Return ``explore``; ``--optilock-explore-limit`` is its limit, unless the call names one."""
    from optilock.testing import explore as explore_units

    limit = request.config.getoption(_LIMIT)

    def explore_with_limit(*units: Callable[[], Any], **options: Any) -> Exploration:
        if limit is not None:
            options.setdefault("limit", limit)
        return explore_units(*units, **options)

    return explore_with_limit


@pytest.fixture(autouse=True)
def optilock_hot_rows() -> Iterator[None]:
    """Forget the hot rows after each test (``strategy="adaptive"`` locks them)."""
    yield
    units = sys.modules.get("optilock.unit")
    if units is not None:
        units.forget_hot_rows()


@pytest.fixture
def optilock_faults() -> Iterator[Callable[[Engine | AsyncEngine], Faults]]:
    """Return a function of an engine that gives its :class:`~optilock.testing.Faults`.

    They end with the test, which fails if an armed fault was not met.
    """
    from optilock.testing import Faults

    with ExitStack() as stack:

        def faults_of(engine: Engine | AsyncEngine) -> Faults:
            return stack.enter_context(Faults(engine))

        yield faults_of
