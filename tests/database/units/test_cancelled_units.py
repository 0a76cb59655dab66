"""Tasks that are cancelled while a unit begins give their connections back."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest
from sqlalchemy import text

from optilock import Isolation
from optilock.unit.async_unit import AsyncUnitOfWork

pytestmark = pytest.mark.anyio

OPTIONS = {
    "serializable": {"isolation": Isolation.SERIALIZABLE},
    "read committed": {"isolation": Isolation.READ_COMMITTED},
    "read only": {"read_only": True},
    "plain": {},
}
#: Without ``--full`` each is cancelled in every fourth of its steps, together in all of them.
BEGINS = {name: number for number, name in enumerate(OPTIONS)}


# aiosqlite leaves a connection open when it is cancelled while it connects, whoever asks it to.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize("options", OPTIONS)
async def test_no_connection_waits_for_the_garbage_collector(
    async_engine, caplog, options, pytestconfig, collect
):
    """SQLAlchemy's pool says so in its log, once for each connection."""

    async def unit() -> None:
        async with AsyncUnitOfWork(async_engine, **OPTIONS[options]) as session:
            await session.execute(text("SELECT 1"))

    # asyncpg leaves a future behind when it is cancelled while it connects, whoever asks it to.
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda *_: None)
    caplog.set_level(logging.ERROR, logger="sqlalchemy.pool")
    await unit()
    collect()
    begin, step, times = (0, 1, 8) if pytestconfig.option.full else (BEGINS[options], 4, 1)
    for turns in [*range(begin, 30, step)] * times:
        task = asyncio.ensure_future(unit())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(before)

    lost = [r for r in caplog.records if "garbage collector" in r.getMessage()]
    assert len(lost) == 0
    assert async_engine.pool.checkedout() == 0
    await unit()
    await async_engine.dispose()
