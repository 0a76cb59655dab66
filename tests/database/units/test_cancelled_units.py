"""Tasks that are cancelled while a unit begins, runs, or ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from contextlib import suppress

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from optilock import Isolation, OptilockError, is_transient, verify, watch
from optilock.unit.async_unit import AsyncUnitOfWork
from tests.support.models import Account
from tests.support.waiting import LIMIT, turn, until_a_lock_is_waited_for

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
    async_engine, caplog, options, tries, collect
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
    begin, step = tries(BEGINS[options], 0, 0), tries(4, 1, 1)
    for turns in [*range(begin, 30, step)] * tries(1, 2, 8):
        task = asyncio.ensure_future(unit())
        for _ in range(turns):
            await turn()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None
    gc.collect()
    await turn()
    loop.set_exception_handler(before)

    lost = [r for r in caplog.records if "garbage collector" in r.getMessage()]
    assert len(lost) == 0
    assert async_engine.pool.checkedout() == 0
    await unit()


@pytest.mark.parametrize("where", ["unit", "savepoint"])
async def test_a_unit_that_catches_a_timeout_of_a_statement_tells_why_it_cannot_go_on(
    async_engine, where
):
    """SQLAlchemy's refusal of what comes after it gives no reason."""
    sessions = async_sessionmaker(async_engine)
    with pytest.raises(OptilockError, match="interrupted") as caught:
        async with AsyncUnitOfWork(sessions) as session:
            await session.execute(text("SELECT 1"))
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    if where == "unit":
                        await session.execute(text("SELECT 2"))
                    else:
                        async with AsyncUnitOfWork(sessions, propagation="savepoint") as inner:
                            await inner.execute(text("SELECT 2"))
            await session.execute(text("SELECT 3"))
    assert not is_transient(caught.value)
    assert async_engine.pool.checkedout() == 0


@pytest.mark.parametrize("propagation", ["savepoint", "join"])
async def test_an_inner_unit_that_is_cancelled_at_its_end_is_not_called_committed(
    async_engine, propagation
):
    sessions = async_sessionmaker(async_engine)
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(asyncio.CancelledError) as caught:
        async with AsyncUnitOfWork(sessions) as session:
            await session.execute(text("SELECT 1"))
            async with AsyncUnitOfWork(sessions, propagation=propagation):
                asyncio.get_running_loop().call_soon(task.cancel)
                asyncio.get_running_loop().call_soon(task.uncancel)
    assert "was left to the unit around it" in caught.value.__notes__[0]


@pytest.mark.engines("postgresql")
async def test_an_inner_unit_that_is_cancelled_does_not_wait_for_a_row(database, engine, store):
    """Its end, which nothing interrupts, comes after its last flush."""
    store(Account(id=1, owner="Ada", balance=1))
    made = create_async_engine(database.url)
    sessions = async_sessionmaker(made)

    async def work() -> None:
        async with (
            AsyncUnitOfWork(sessions),
            AsyncUnitOfWork(sessions, propagation="savepoint") as inner,
        ):
            (await inner.get_one(Account, 1)).balance += 1

    with engine.connect() as holder:
        holder.execute(text("UPDATE accounts SET note = 'held'"))
        to_end = threading.Timer(LIMIT, holder.rollback)
        to_end.start()
        task = asyncio.ensure_future(work())
        await asyncio.to_thread(until_a_lock_is_waited_for, engine)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not to_end.finished.is_set()
        to_end.cancel()
    await made.dispose()


async def test_a_session_that_is_cancelled_in_optilocks_own_question_gives_its_connection_back(
    async_engine,
):
    """MariaDB is asked whether it is a node of a cluster, with the driver alone."""
    sessions = watch(async_sessionmaker(async_engine))

    async def read() -> None:
        async with sessions() as session:
            await session.execute(text("SELECT 1"))

    async with async_engine.connect() as connection:  # or it would be cancelled while it connects
        await connection.execute(text("SELECT 1"))
    task = asyncio.ensure_future(read())
    loop = asyncio.get_running_loop()
    cancel = lambda *_: loop.call_soon(task.cancel)  # noqa: E731
    event.listen(async_engine.sync_engine, "checkout", cancel, once=True)
    await asyncio.wait({task})
    assert task.cancelled()
    assert async_engine.pool.checkedout() == 0
    await read()


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("case", ["no write", "many promises", "the same values", "a listener"])
async def test_a_cancelled_pipelined_unit_does_not_wait_for_a_promised_row(
    database, engine, store, case
):
    """A cancelled task waits for its COMMIT, and so for a check that goes with it."""
    store(*(Account(id=number, owner="Ada", balance=1) for number in range(1, 16)))
    made = create_async_engine(database.url)
    with engine.connect() as holder:
        holder.execute(text("UPDATE accounts SET note = 'held' WHERE id = 5"))
        to_end = threading.Timer(LIMIT, holder.rollback)
        to_end.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), AsyncUnitOfWork(made, pipelined=True) as unit:
                verify(await unit.get_one(Account, 5))
                last = await unit.get_one(Account, 15)
                if case == "a listener":
                    last.balance += 1
                    event.listen(made.sync_engine, "commit", lambda connection: None)
                elif case == "many promises":
                    last.balance += 1
                    for number in range(6, 15):
                        verify(await unit.get_one(Account, number))
                elif case == "the same values":
                    last.balance += 1
                    last.balance -= 1
        assert not to_end.finished.is_set()
        to_end.cancel()
    await made.dispose()
