"""Units on a standby: those that only read, and writes that should have gone to the primary."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from checks.deployments.postgresql import Node, url_of
from checks.deployments.writers import Account, add
from optilock import AsyncUnitOfWork, UnitOfWork, is_transient, repeatable_read, unit_of_work
from optilock.unit import Adaptive
from optilock.unit.heat import MEMORY, Key
from optilock.unit.sessions import name_of

# -- units that only read --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_after_a_unit_that_only_reads_the_next_one_reads_too(writing, pair, options):
    """On one connection; BEGIN READ WRITE is an error there (0A000)."""
    engine = create_engine(pair.standby.url, pool_size=1, max_overflow=0)
    with UnitOfWork(engine, read_only=True) as session:
        assert session.get_one(Account, 1).number == 0
    with repeatable_read(engine, read_only=True) as session:
        assert session.get_one(Account, 1).number == 0
    with UnitOfWork(engine, **options) as session:
        assert session.get_one(Account, 1).number == 0
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_with_async_drivers_too(writing, pair, driver):
    async def story() -> None:
        engine = create_async_engine(url_of(pair.standby, driver=driver), pool_size=1)
        for options in ({"read_only": True}, {}):
            async with AsyncUnitOfWork(engine, **options) as session:
                assert (await session.get_one(Account, 1)).number == 0
        await engine.dispose()

    asyncio.run(story())


@pytest.mark.parametrize("driver", ["", "psycopg", "asyncpg"])
def test_a_hot_row_is_read_without_the_lock_that_a_standby_refuses(writing, pair, driver):
    """The first unit of a name has one attempt more."""
    attempts: list[int] = []

    def number(session: Session) -> int:
        attempts.append(1)
        return session.get_one(Account, 1).number

    async def number_async(session: AsyncSession) -> int:
        return await session.run_sync(number)

    async def story() -> None:
        engine = create_async_engine(url_of(pair.standby, driver=driver))
        make_hot(engine.sync_engine)
        work = unit_of_work(engine)(number_async)
        assert [await work(), await work()] == [0, 0]
        await engine.dispose()

    if driver:
        asyncio.run(story())
    else:
        engine = create_engine(pair.standby.url)
        make_hot(engine)
        work = unit_of_work(engine)(number)
        assert [work(), work()] == [0, 0]
        engine.dispose()
    assert len(attempts) == 3


def make_hot(engine: Engine) -> None:
    MEMORY.forget()
    key = Key(name_of(engine), Account.__tablename__, (1,))
    MEMORY.conflict(key, Adaptive(), "the test says so")
    MEMORY.rows[key].left = 1_000_000


# -- a write that comes to the wrong server --------------------------------------------------------


def leads_to(engine: Any, *nodes: Node) -> list[int]:
    """A name that leads to one server after the other: each new connection to the next."""
    ports: list[int] = []

    @event.listens_for(engine, "do_connect")
    def do_connect(dialect: Any, record: Any, positional: Any, named: dict[str, Any]) -> None:
        ports.append(nodes[min(len(ports), len(nodes) - 1)].port)
        named["port"] = ports[-1]

    return ports


def single(node: Node, driver: str) -> str:
    return f"postgresql+{driver}://postgres@127.0.0.1:{node.port}/postgres"


def test_a_write_that_comes_to_a_standby_is_run_again_on_a_new_connection(writing, pair):
    engine = create_engine(single(pair.standby, "psycopg"))
    ports = leads_to(engine, pair.standby, pair.primary)
    seen: list[int] = []
    unit_of_work(engine)(add)(seen)
    engine.dispose()
    assert ports == [pair.standby.port, pair.primary.port]
    assert seen == [0, 0]
    with Session(writing) as session:
        assert session.get_one(Account, 1).number == 1


def test_asyncpg_is_told_by_its_server_too(writing, pair):
    async def story() -> list[int]:
        engine = create_async_engine(single(pair.standby, "asyncpg"))
        ports = leads_to(engine.sync_engine, pair.standby, pair.primary)

        @unit_of_work(engine)
        async def unit(session: AsyncSession) -> None:
            await session.run_sync(add, [])

        await unit()
        await engine.dispose()
        return ports

    assert asyncio.run(story()) == [pair.standby.port, pair.primary.port]
    with Session(writing) as session:
        assert session.get_one(Account, 1).number == 1


def test_a_role_that_may_only_read_is_not_tried_again(writing, pair):
    """The same SQLSTATE, on a server that takes writes."""
    options = {"options": "-c default_transaction_read_only=on"}
    engine = create_engine(pair.primary.url, connect_args=options)
    seen: list[int] = []
    with pytest.raises(DBAPIError) as caught:
        unit_of_work(engine)(add)(seen)
    engine.dispose()
    assert seen == [0]
    assert not is_transient(caught.value)
    assert "read-only transaction" in str(caught.value.orig)
