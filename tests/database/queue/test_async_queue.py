"""The same for asyncio: every vector, and the calls that are written twice."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from optilock import ConfigurationError
from optilock.queue import AsyncQueue, Draft, Queue, ReceiptExpired
from optilock.queue.async_queue import AsyncListeningWaiter
from tests.database.queue.test_queue_vectors import EMPTY, VECTORS, Run
from tests.database.queue.test_worker_end import sleep_in_child
from tests.engines import Target
from tests.support.queues import CLOCK, Asked, lose_all_connections, make_tables, shift
from tests.support.waiting import LIMIT, for_ever, turn, until_awaited, until_past
from tests.support.waiting import until_awaited as until

CALLS = sorted(
    name
    for name, call in vars(Queue).items()
    if inspect.isfunction(call) and not name.startswith("_")
)


class Awaited:
    """An async queue, called as a sync one."""

    def __init__(self, runner: asyncio.Runner, queue: AsyncQueue) -> None:
        self._runner, self._queue = runner, queue

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._queue, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._runner.run(found(*args, **options))


@pytest.fixture
def sync(async_database: Target) -> Iterator[Any]:
    engine = async_database.engine()
    make_tables(engine, clock=True)
    yield engine
    engine.dispose()


@pytest.fixture
def runner(async_engine: AsyncEngine) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner
        runner.run(async_engine.dispose())


@pytest.fixture
def queue(async_engine: AsyncEngine, runner: asyncio.Runner, sync: Any) -> Iterator[Any]:
    made = AsyncQueue(async_engine, "work", clock=CLOCK)
    yield Awaited(runner, made)
    runner.run(made.close())


def test_every_vector(queue, sync):
    for name in EMPTY:
        Run(queue, sync).steps(VECTORS[name]["steps"])
        queue.purge()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_the_same_as_the_sync_one(name):
    mine, theirs = (inspect.signature(getattr(one, name)) for one in (AsyncQueue, Queue))
    assert list(mine.parameters) == list(theirs.parameters)


def test_the_rest_of_the_calls(queue, sync):
    queue.send_many([Draft(n, group="g") for n in range(2)] + ["one", "two", "three"])
    first = queue.receive(10)
    assert sorted(str(one.body) for one in first) == ["0", "one", "three", "two"]
    after = queue.receive(10, done=first)
    assert [one.body for one in after] == [1]
    assert queue.fail(after[0], "no") is False
    queue.archive(*queue.receive())
    queue.send("pop")
    assert queue.peek()[0].body == "pop"
    assert queue.pop()[0].body == "pop"
    assert queue.metrics(exact=True).waiting == 0
    for _ in range(5):
        queue.send("dead", dedup="k")
        queue.fail(queue.receive()[0], "no")
    assert queue.redrive(5) == 1


def test_it_is_sent_and_deleted_in_the_callers_transaction(queue, sync, async_engine, runner):
    async def story() -> None:
        ours = queue._queue
        async with AsyncSession(async_engine) as session:
            await ours.send("never", session=session)
            await session.rollback()
            await ours.send("sent", session=session)
            await session.commit()
        (message,) = await ours.receive(5, visibility=1)
        shift(sync, 2)
        (again,) = await ours.receive(5)
        async with AsyncSession(async_engine) as session:
            with pytest.raises(ReceiptExpired):
                await ours.delete(message, session=session)
            await session.rollback()
            await ours.delete(again, session=session)
            await session.commit()
        assert await ours.receive() == []

    runner.run(story())


@pytest.mark.anyio
async def test_who_waits_gets_the_message_as_soon_as_it_is_sent(async_engine, sync):
    async with AsyncQueue(async_engine, "real") as ours:
        asked = Asked(async_engine.sync_engine)
        waiting = asyncio.create_task(ours.receive(wait=10 * LIMIT))
        await until_awaited(asked.has_looked)
        await ours.send("hello")
        (message,) = await asyncio.wait_for(waiting, LIMIT / 2)
        assert message.body == "hello"
        assert await ours.receive(wait=0.05) == []
        asked = Asked(async_engine.sync_engine)
        cancelled = asyncio.create_task(ours.receive(wait=LIMIT))
        await until_awaited(asked.has_looked)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


def test_each_shell_refuses_the_others_engine(async_engine, sync):
    with pytest.raises(ConfigurationError, match="AsyncQueue"):
        Queue(async_engine, "q")
    with pytest.raises(ConfigurationError, match="Queue"):
        AsyncQueue(sync, "q")


# -- workers ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.anyio
async def test_a_worker_handles_fails_keeps_and_gives_back(async_engine, sync):
    seen: list[Any] = []
    messages: list[Any] = []
    slow = asyncio.Event()

    async def handle(message: Any) -> None:
        messages.append(message)
        seen.append((message.body, message.receives))
        if message.body == "bad" and message.receives == 1:
            raise ValueError("bad")
        if message.body == "stuck" and message.receives == 1:
            await for_ever()
        if message.body == "slow":
            await slow.wait()

    async with AsyncQueue(async_engine, "real", visibility=3) as ours:

        async def empty() -> bool:
            found = await ours.metrics(exact=True)
            return found.waiting + found.hidden == 0

        worker = ours.worker(handle, concurrency=2, timeout=2, retry=lambda receives: 0.0)
        running = asyncio.create_task(worker.run())
        await ours.send_many(["a", "bad", "stuck", "b"])
        await until(empty)
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        twice = [(body, number) for body in ("bad", "stuck") for number in (1, 2)]
        assert sorted(seen) == [("a", 1), ("b", 1), *twice]
        worker = ours.worker(handle, concurrency=2)
        running = asyncio.create_task(worker.run())
        await ours.send_many(["slow", "slow", "rest"])
        await until(lambda: _is(seen.count(("slow", 1)) == 2))
        hidden = max(one.visible_at for one in messages)  # without a heartbeat
        await asyncio.to_thread(until_past, sync, hidden)
        assert await ours.receive(5) == []
        worker.stop()
        slow.set()
        await asyncio.wait_for(running, LIMIT)
        (rest,) = await ours.receive(5)
        assert (rest.body, rest.receives) == ("rest", 1)


@pytest.mark.full
@pytest.mark.anyio
async def test_an_idle_worker_asks_nothing_on_postgresql_and_elsewhere_once_a_second(
    async_engine, sync
):
    async with AsyncQueue(async_engine, "real") as ours:
        asked = Asked(async_engine.sync_engine)
        worker = ours.worker(print)
        running = asyncio.create_task(worker.run())
        listens = async_engine.dialect.name == "postgresql"
        await until(lambda: _is(asked.is_silent() if listens else asked.is_seldom()))
        worker.stop()
        await asyncio.wait_for(running, LIMIT)


@pytest.mark.engines("postgresql", "asyncpg")
@pytest.mark.anyio
async def test_an_idle_worker_notices_that_its_connection_has_ended(
    async_database, async_engine, sync
):
    seen = asyncio.Event()

    async def handle(message: Any) -> None:
        seen.set()

    async with AsyncQueue(async_engine, "real") as ours:
        worker = ours.worker(handle)
        running = asyncio.create_task(worker.run())
        await until(lambda: _is(_is_watched(sync)))  # it listens by now
        lose_all_connections(async_database)
        sync.dispose()
        with Queue(sync, "real") as other:
            await asyncio.to_thread(other.send, "while it has no connection")
        await asyncio.wait_for(seen.wait(), LIMIT / 2)
        worker.stop()
        await asyncio.wait_for(running, LIMIT)


def _is_watched(sync: Any) -> bool:
    asked = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with sync.connect() as connection:
        return bool(connection.scalar(text(asked)))


async def _is(true: bool) -> bool:
    return true


@pytest.mark.anyio
async def test_a_worker_writes_in_the_transaction_that_deletes(async_engine, sync):
    sessions = async_sessionmaker(async_engine)
    async with AsyncQueue(async_engine, "real") as ours:
        other = AsyncQueue(async_engine, "effects")
        fails = [True]

        async def handle(message: Any, session: AsyncSession) -> None:
            await other.send(message.body, session=session)
            if fails:
                fails.pop()
                raise ValueError("after the write")

        await ours.send_many(range(4))
        worker = ours.worker(handle, sessions=sessions, retry=lambda receives: 0.0)
        running = asyncio.create_task(worker.run())

        async def empty() -> bool:
            found = await ours.metrics(exact=True)
            return found.waiting + found.hidden == 0

        await until(empty)
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert sorted(message.body for message in await other.receive(9)) == [0, 1, 2, 3]
        await other.close()


# -- threads, event loops, signals and lost connections --------------------------------------------


@pytest.mark.engines("postgresql", "asyncpg")
@pytest.mark.anyio
async def test_another_thread_can_stop_a_worker_that_sleeps(async_engine, sync):
    async with AsyncQueue(async_engine, "real") as ours:
        worker = ours.worker(print, heartbeat=False)
        asked = Asked(async_engine.sync_engine)
        running = asyncio.create_task(worker.run())
        await until_awaited(asked.has_looked)
        threading.Timer(0.2, worker.stop).start()
        done, _ = await asyncio.wait({running}, timeout=10)
        assert done


@pytest.mark.engines("sqlite-wal")
@pytest.mark.anyio
async def test_a_signal_stops_all_workers_of_an_event_loop(async_engine, sync):
    queues = [AsyncQueue(async_engine, name) for name in "ab"]
    asked = Asked(async_engine.sync_engine)
    running = [asyncio.create_task(one.worker(print).run()) for one in queues]
    await until_awaited(lambda: asked.has_looked(2))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*running), LIMIT)
    for one in queues:
        await one.close()


@pytest.mark.engines("sqlite-wal")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.anyio
async def test_the_end_of_a_forked_process_stops_no_worker(async_engine, sync):
    """It has inherited the line on which the event loop learns of signals."""
    forking = multiprocessing.get_context("fork")

    ended: list[Any] = []

    async def handle(message: Any) -> None:
        heard, said = forking.Pipe()
        child = forking.Process(target=sleep_in_child, args=(said,))
        child.start()
        await asyncio.to_thread(heard.recv)
        child.terminate()
        await asyncio.to_thread(child.join, 10)
        ended.append(child.exitcode)
        child.kill()

    async with AsyncQueue(async_engine, "real") as ours:
        worker = ours.worker(handle)
        running = asyncio.create_task(worker.run())
        for _ in range(2):
            await ours.send("a")
        await until(lambda: _is(ended == [-signal.SIGTERM] * 2))
        assert not running.done()
        worker.stop()
        await asyncio.wait_for(running, 10)


@pytest.mark.engines("sqlite-wal")
def test_a_worker_restores_what_was_done_at_a_signal(async_engine, sync, runner):
    def by_name() -> list[Any]:
        return [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]

    async def story() -> None:
        before = by_name()
        async with AsyncQueue(async_engine, "real") as ours:
            worker = ours.worker(asyncio.sleep)
            asyncio.get_running_loop().call_later(0.1, worker.stop)
            await worker.run()
        assert by_name() == before

    found = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        runner.run(story())
    finally:
        signal.signal(signal.SIGTERM, found)


@pytest.mark.engines("postgresql", "asyncpg")
@pytest.mark.anyio
async def test_a_waiter_that_is_cancelled_leaves_the_pool_no_dead_connection(
    async_engine, sync, monkeypatch
):
    async with AsyncQueue(async_engine, "real") as ours:
        waiting = asyncio.create_task(ours.receive(wait=LIMIT))
        listen = AsyncListeningWaiter.listen

        async def cancelled_in_its_statement(waiter: AsyncListeningWaiter) -> None:
            asyncio.get_running_loop().call_soon(waiting.cancel)
            await listen(waiter)

        monkeypatch.setattr(AsyncListeningWaiter, "listen", cancelled_in_its_statement)
        with pytest.raises(asyncio.CancelledError):
            await waiting
    for _ in range(2):  # that of the queue, and the waiter's
        async with async_engine.connect() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1


@pytest.mark.engines("sqlite-wal")
def test_a_queue_waits_in_one_event_loop_after_another(async_engine, sync):
    ours = AsyncQueue(async_engine, "real")

    async def story() -> None:
        assert await ours.receive(wait=0.05) == []
        await ours.connections.close()
        await async_engine.dispose()

    for _ in range(2):
        asyncio.run(story())


@pytest.mark.engines("postgresql", "asyncpg", "mariadb-asyncmy")
@pytest.mark.anyio
async def test_connections_that_ended_while_they_rested_are_replaced(
    async_database, async_engine, sync
):
    async def noticed() -> None:
        """The event loop has read that the lines are closed."""
        for _ in range(20):
            await turn()

    async with AsyncQueue(async_engine, "real") as ours:
        assert await ours.receive(wait=0.05) == []
        lose_all_connections(async_database)
        await noticed()
        assert await ours.receive(wait=0.05) == []
        lose_all_connections(async_database)
        await noticed()
        await ours.send("a")  # it does not know whether it is sent if its connection is lost
