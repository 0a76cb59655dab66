"""Units of asyncio: each in an event loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.pool import NullPool

from checks.explore.pairs import COUNTERS, GUARDED
from checks.explore.rows import Base, Counter, Guarded, reset_of
from optilock import ConfigurationError, unit_of_work, watch
from optilock.testing import explore
from tests.engines import Target


@pytest.fixture
def unpooled(async_database: Target) -> AsyncEngine:
    assert async_database.async_url is not None
    made = create_async_engine(
        async_database.async_url, poolclass=NullPool, **async_database.options
    )
    async_database.prepare(made.sync_engine)
    return made


@pytest.fixture
def put_back_beside(async_database: Target) -> Any:
    """``reset`` on a sync engine of the same database."""
    engine: Engine = async_database.engine()
    Base.metadata.create_all(engine)
    yield lambda rows: reset_of(engine, rows)
    engine.dispose()


def test_async_units_are_explored(
    unpooled: AsyncEngine, put_back_beside: Callable[..., Any]
) -> None:
    sessions = async_sessionmaker(unpooled)

    async def increment() -> None:
        async with sessions.begin() as session:
            (await session.get_one(Counter, 1)).n += 1

    @unit_of_work(watch(async_sessionmaker(unpooled)), attempts=4)
    async def guarded(session: AsyncSession) -> None:
        (await session.get_one(Guarded, 1)).n += 1

    wrong = explore(increment, increment, sessions=sessions, reset=put_back_beside(COUNTERS))
    right = explore(guarded, guarded, sessions=sessions, reset=put_back_beside(GUARDED))
    assert [one.anomaly for one in wrong.failures] == ["lost update"] * 4
    assert right.failures == ()
    assert wrong.complete
    assert right.complete


@pytest.mark.usually("sqlite-wal")
def test_a_pool_of_connections_cannot_serve_several_loops(async_engine: AsyncEngine) -> None:
    async def unit() -> None: ...

    with pytest.raises(ConfigurationError, match="poolclass=NullPool"):
        explore(unit, unit, sessions=async_sessionmaker(async_engine), reset=lambda: None)


def test_a_unit_of_the_other_kind_is_refused(unpooled: AsyncEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"is def, and sessions= is of an AsyncEngine"):
        explore(lambda: None, lambda: None, sessions=unpooled, reset=lambda: None)
