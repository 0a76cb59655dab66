"""Calls of a queue without ``session=`` inside a unit of work on the same database."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from optilock import ConfigurationError, UnitOfWork
from optilock.asyncio import AsyncUnitOfWork
from optilock.errors import SeparateUnitWarning
from optilock.queue import AsyncQueue, Draft, Queue
from tests.database.queue.test_async_queue import runner as runner
from tests.database.queue.test_async_queue import sync as sync
from tests.support.queues import made
from tests.support.queues import queue as queue

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

CALLS: dict[str, Any] = {
    "send": lambda queue, message: queue.send("a"),
    "send_many": lambda queue, message: queue.send_many(["a", Draft("b", dedup="k")]),
    "delete": lambda queue, message: queue.delete(message),
    "archive": lambda queue, message: queue.archive(message),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_commits_on_its_own_warns(queue, engine, call):
    """B3: it stays although the unit is rolled back."""
    queue.send("held")
    (message,) = queue.receive()
    warns = pytest.warns(SeparateUnitWarning, match=rf"^{call}\(\) of the queue 'work'")
    with UnitOfWork(sessionmaker(engine)), warns as heard:
        CALLS[call](queue, message)
    assert heard[0].filename == __file__


@pytest.mark.parametrize("call", CALLS)
def test_a_strict_unit_refuses_it(queue, engine, call):
    """B3: and nothing is changed."""
    queue.send("held")
    (message,) = queue.receive()
    before = queue.metrics()
    with UnitOfWork(sessionmaker(engine), strict=True) as session:
        with pytest.raises(ConfigurationError, match=r"session=.* strict, so nothing was changed"):
            CALLS[call](queue, message)
        queue.send("with the unit", session=session)
    assert (queue.metrics().waiting, queue.metrics().hidden) == (1, before.hidden)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("call", CALLS)
def test_on_sqlite_it_fails_at_once_if_the_unit_has_the_lock(database, call):
    """B3: it waited for as long as the driver does."""
    engine = database.engine(connect_args={"timeout": 3_000})
    queue = made(engine)
    queue.send("held")
    (message,) = queue.receive()
    with UnitOfWork(sessionmaker(engine)) as session:
        queue.send("with the unit", session=session)
        with (
            pytest.warns(SeparateUnitWarning),
            pytest.raises(ConfigurationError, match=r"waits for a lock here.* nothing was changed"),
        ):
            CALLS[call](queue, message)
    ask = "PRAGMA busy_timeout"
    assert queue.connections.run(lambda c: c.exec_driver_sql(ask).scalar()) == 3_000_000
    queue.close()
    engine.dispose()


@pytest.mark.needs("row-locks")
def test_elsewhere_it_waits_a_moment_for_a_key_that_the_unit_has_sent(queue, engine):
    """B3: on PostgreSQL it waited for ever."""
    with UnitOfWork(sessionmaker(engine)) as session:
        queue.send("a", dedup="k", session=session)
        with (
            pytest.warns(SeparateUnitWarning),
            pytest.raises(ConfigurationError, match="waits for a lock here"),
        ):
            queue.send("b", dedup="k")
    assert queue.metrics().waiting == 1


def test_elsewhere_nothing_is_said(queue, engine, tmp_path):
    """B3: in the unit's session, on a connection of its own, after the unit, in another database,
    or in a unit that only reads."""
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    with made(other) as theirs, warnings.catch_warnings():
        warnings.simplefilter("error")
        with UnitOfWork(sessionmaker(engine)) as session:
            theirs.send("other database")
            if engine.dialect.name != "sqlite":
                with engine.begin() as connection:
                    queue.send("on its own", session=connection)
            queue.send("in the unit", session=session)
        with UnitOfWork(sessionmaker(engine), read_only=True):
            queue.send("only reads")
        queue.send("after")
    other.dispose()


@pytest.mark.anyio
async def test_an_async_unit_warns_and_refuses_too(async_engine, sync):
    """B3: AsyncQueue inside AsyncUnitOfWork."""

    sessions = async_sessionmaker(async_engine)
    async with AsyncQueue(async_engine, "real") as ours:
        async with AsyncUnitOfWork(sessions):
            with pytest.warns(SeparateUnitWarning, match="send_many"):
                await ours.send_many(["a"])
        async with AsyncUnitOfWork(sessions, strict=True) as session:
            with pytest.raises(ConfigurationError, match="strict"):
                await ours.send("b")
            await ours.send("c", session=session)
        assert (await ours.metrics()).waiting == 2


def test_a_handler_is_no_unit(queue: Queue) -> None:
    """B3: a worker's own calls warn of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        queue.send("a")
        for message in queue.receive():
            queue.delete(message)
