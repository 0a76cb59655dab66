"""The same operations for an ``AsyncSession``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from optilock import AsyncUnitOfWork, PreconditionFailed, asyncio, entities
from optilock.entities import Operation
from optilock.errors import AlreadyExists, BatchFailed, NotFound
from tests.support.entities import KINDS
from tests.support.models import Account, Note

pytestmark = pytest.mark.anyio
CLASSES = {
    Account: "owner",
    Note: "text",
    KINDS["RowVersion"]: "title",
    KINDS["Timestamp"]: "title",
}


async def test_async_sessions_have_the_same_operations(
    async_engine: AsyncEngine, async_tables: Callable[..., None]
) -> None:
    async_tables(*CLASSES)
    for cls, name in CLASSES.items():
        async with AsyncUnitOfWork(async_engine) as session:
            first = await asyncio.insert(session, cls, 1, {name: "a"})
            second = await asyncio.merge(session, cls, 1, {name: "b"}, if_match=first.etag)
            third = await asyncio.replace(
                session, cls, 1, {name: "c"}, if_match=[first.etag, second.etag]
            )
            with pytest.raises(PreconditionFailed) as caught:
                await asyncio.merge(session, cls, 1, {name: "d"}, if_match=second.etag)
            assert caught.value.etag == third.etag
            with pytest.raises(AlreadyExists):
                await asyncio.insert(session, cls, 1, if_none_match="*")
            await asyncio.insert_or_merge(session, cls, 2, {name: "a"})
            await asyncio.insert_or_replace(session, cls, 2, {name: "b"})
            some = [
                Operation(entities.delete, cls, 2, if_match="*"),
                Operation(entities.merge, cls, 9, {name: "b"}, if_match="*"),
            ]
            with pytest.raises(BatchFailed) as failed:
                await asyncio.transaction(session, some)
            assert isinstance(failed.value.cause, NotFound)
            await asyncio.transaction(session, some[:1])
            done = await asyncio.merge(session, cls, 1, if_match="*")
        async with AsyncSession(async_engine) as plain:
            assert getattr(await plain.get_one(cls, 1), "version") == done.version  # noqa: B009
            assert await plain.get(cls, 2) is None
