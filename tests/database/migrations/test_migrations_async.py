"""Operations in an ``env.py`` of Alembic's async template: ``await connection.run_sync(...)``."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

import optilock.alembic  # noqa: F401  gives op its operations
from optilock.tokens import Counter, Unique

pytestmark = pytest.mark.anyio
GUARDED: dict[str, Any] = {"guard": "bump", "ignore": ["views"]}


async def migrate(engine: AsyncEngine, work: Any) -> None:
    def run(connection: Connection) -> None:
        context = MigrationContext.configure(connection)
        with (
            context.begin_transaction(),
            context.begin_transaction(_per_migration=True),
            Operations.context(context) as op,
        ):
            work(op)

    async with engine.connect() as connection:
        await connection.run_sync(run)


@pytest.fixture
async def parcels(async_engine: AsyncEngine) -> AsyncEngine:
    async with async_engine.begin() as connection:
        await connection.execute(text("CREATE TABLE parcels (id INTEGER PRIMARY KEY, views INT)"))
        await connection.execute(text("INSERT INTO parcels VALUES (1, 0), (2, 0), (3, 0)"))
    return async_engine


async def asked(engine: AsyncEngine, sql: str) -> Any:
    async with engine.connect() as connection:
        return await connection.scalar(text(sql))


async def test_a_version_is_rolled_out_and_back(parcels: AsyncEngine) -> None:
    for _ in range(2):
        await migrate(
            parcels, lambda op: op.roll_out_version_column("parcels", Unique(), **GUARDED)
        )
        assert await asked(parcels, "SELECT count(DISTINCT version) FROM parcels") == 3
        await migrate(
            parcels, lambda op: op.roll_back_version_column("parcels", Unique(), **GUARDED)
        )
    assert await asked(parcels, "SELECT count(*) FROM parcels") == 3
    await parcels.dispose()


async def test_an_operation_that_fails_leaves_the_table_as_it_was(parcels: AsyncEngine) -> None:
    with pytest.raises(DBAPIError, match="nowhere"):
        await migrate(
            parcels,
            lambda op: op.add_version_column("parcels", Counter(), fill="(SELECT 1 FROM nowhere)"),
        )
    await migrate(parcels, lambda op: op.add_version_column("parcels", Counter()))
    assert await asked(parcels, "SELECT sum(version) FROM parcels") == 3
    await parcels.dispose()
