"""Units of AsyncSessions: keys, lost COMMITs, and tasks that are cancelled while it is asked."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import make_url, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from checks.exactly_once.cut_commits import CommitCutter
from optilock import AsyncUnitOfWork, ConfigurationError, unit_of_work
from optilock.asyncio import committed, purge
from optilock.errors import CommitOutcomeUnknown
from optilock.exactly_once import AlreadyDone, KeyReused, NotCommitted, questions
from optilock.exactly_once import committed as committed_sync
from optilock.exactly_once import purge as purge_sync
from optilock.tables.names import commit_tokens
from tests.support.models import Account
from tests.support.waiting import turn, until_awaited

pytestmark = pytest.mark.anyio


async def prepare(engine) -> None:
    def fill(session: Session) -> None:
        for table in (Account.__table__, commit_tokens):
            table.create(session.connection(), checkfirst=True)
        session.add(Account(id=1, owner="Ada", balance=0))

    async with async_sessionmaker(engine).begin() as session:
        await session.run_sync(fill)


async def increase(session) -> int:
    account = await session.get_one(Account, 1)
    account.balance += 1
    return account.balance


async def balance(engine) -> int:
    async with engine.connect() as connection:
        return await connection.scalar(select(Account.balance))


async def test_a_key_is_stored_once_with_its_result(async_engine):
    await prepare(async_engine)

    @unit_of_work(async_engine, exactly_once=lambda number: f"k{number}")
    async def pay(session, number: int) -> dict[str, int]:
        return {"balance": await increase(session)}

    many = await asyncio.gather(*(pay(1) for _ in range(3)))
    assert many == [{"balance": 1}] * 3
    assert await pay(2) == {"balance": 2}
    async with AsyncUnitOfWork(async_engine, exactly_once="block") as session:
        await increase(session)
    with pytest.raises(AlreadyDone, match="block"):
        async with AsyncUnitOfWork(async_engine, exactly_once="block"):
            pass
    with pytest.raises(KeyReused):
        async with AsyncUnitOfWork(async_engine, exactly_once="k1"):
            pass
    async with AsyncUnitOfWork(async_engine, exactly_once=True) as session:
        await increase(session)
    assert await balance(async_engine) == 4
    assert await purge(async_engine) == 0
    for call in (committed_sync, purge_sync):
        with pytest.raises(ConfigurationError, match=r"optilock\.asyncio"):
            call(async_engine, *(["~a"] if call is committed_sync else []))


@pytest.fixture
def cut_line(async_database):
    if async_database.family == "sqlite":
        pytest.skip("a file has no line that could be cut")
    ways: list[str | None] = []
    url = make_url(async_database.async_url)
    line = CommitCutter(url, lambda: ways.pop(0) if ways else None)
    yield line, ways, create_async_engine(line.url, pool_size=1, max_overflow=0)
    line.close()


@pytest.mark.parametrize("way", ["before", "after"])
async def test_a_lost_commit_is_found_out(async_engine, cut_line, monkeypatch, way):
    line, ways, engine = cut_line
    await prepare(async_engine)
    async with engine.connect():  # asyncmy sends a COMMIT of its own when it connects
        pass
    ways.append(way)

    @unit_of_work(engine, exactly_once=True, attempts=1)
    async def pay(session) -> object:
        await increase(session)
        return session

    if way == "before":
        with pytest.raises(NotCommitted):
            await pay()
        assert await pay()
    else:
        assert await pay()
    assert await balance(async_engine) == 1
    monkeypatch.setattr(questions, "PATIENCE", 0.1)
    ways.append(way)
    with pytest.raises(CommitOutcomeUnknown) as lost:
        async with AsyncUnitOfWork(engine, exactly_once=True) as session:
            await increase(session)
            await session.flush()
            line.refuses = True
    assert await committed(async_engine, lost.value.token) is (way == "after")
    for one in (engine, async_engine):
        await one.dispose()


async def test_a_server_that_never_answers_is_not_waited_for(async_engine, cut_line, monkeypatch):
    line, ways, engine = cut_line
    await prepare(async_engine)
    async with engine.connect():
        pass
    ways.append("after")
    monkeypatch.setattr(questions, "PATIENCE", 0.1)
    monkeypatch.setattr(questions, "_LAST", 0.1)
    with pytest.raises(CommitOutcomeUnknown) as lost:
        async with AsyncUnitOfWork(engine, exactly_once=True) as session:
            await increase(session)
            await session.flush()
            line.hangs = True
    assert lost.value.token.startswith("~")
    for one in (engine, async_engine):
        await one.dispose()


async def test_a_task_that_is_cancelled_while_it_asks_learns_the_outcome(async_engine, cut_line):
    line, ways, engine = cut_line
    await prepare(async_engine)
    async with engine.connect():
        pass
    ways.append("after")

    async def pay() -> None:
        async with AsyncUnitOfWork(engine, exactly_once=True) as session:
            await increase(session)
            await session.flush()
            line.refuses = True

    task = asyncio.ensure_future(pay())
    await until_awaited(lambda: line.cuts)
    task.cancel()
    await turn()
    line.refuses = False
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert any("was committed" in note for note in cancelled.value.__notes__)
    assert await balance(async_engine) == 1
    for one in (engine, async_engine):
        await one.dispose()
