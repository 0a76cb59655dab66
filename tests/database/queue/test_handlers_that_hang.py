"""Handlers that never return: their messages fail, others are handled, and the worker can end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from optilock import events
from optilock.queue import AsyncQueue, Draft, Message, Queue
from optilock.queue.worker_state import HeldMessages
from tests.database.queue.test_async_queue import runner as runner
from tests.database.queue.test_async_queue import sync as sync
from tests.database.queue.test_worker import Running, left
from tests.database.queue.test_worker import queue as queue
from tests.support.queues import bodies, make_tables
from tests.support.waiting import LIMIT, until, until_awaited

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Until it is set, handlers hang; it is set at the end of the test."""
    go_on = threading.Event()
    yield go_on
    go_on.set()


def effect_of(queue: Any, message: Message) -> Any:
    """Return an INSERT that is the effect of a message."""
    values = {"id": message.receives * 1000 + message.id, "archived_at": message.sent_at}
    values |= {"tenant": "", "queue": "effect", "sent_at": message.sent_at}
    return insert(queue.tables.archive).values(**values, receives=0, body="null")


def effects(queue: Any, engine: Any) -> int:
    with engine.connect() as connection:
        count = select(func.count()).select_from(queue.tables.archive)
        return int(connection.scalar(count) or 0)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.full
def test_a_message_whose_handler_hangs_fails_and_comes_again(queue, hang, group):
    """E2: although the handler's transaction has the lock of the message, or of SQLite."""
    seen: list[Any] = []
    ended: list[Any] = []

    def handle(message: Message, session: Any) -> None:
        seen.append((message.body, message.receives))
        session.execute(effect_of(queue, message))
        if message.body == "hangs" and message.receives == 1:
            hang.wait(2 * LIMIT)
            try:  # too late: nothing of this is stored
                session.execute(effect_of(queue, message))
                session.commit()
            except Exception as error:
                ended.append(type(error).__name__)
                raise

    queue.send_many([Draft("hangs", group=group), "a", "b"])
    worker = queue.worker(
        handle,
        concurrency=2,
        sessions=sessionmaker(queue.engine),
        timeout=1.5,
        retry=lambda receives: 0.0,
        grace=5,
    )
    with Running(worker):
        until(lambda: left(queue) == 0)
        assert sorted(seen) == [("a", 1), ("b", 1), ("hangs", 1), ("hangs", 2)]
        assert effects(queue, queue.engine) == 3
        hang.set()
        until(lambda: ended)
        assert effects(queue, queue.engine) == 3


@pytest.mark.full
def test_a_worker_ends_while_handlers_hang(queue, hang):
    """E2: without a timeout; their messages are free for other workers then."""
    begun: list[Any] = []

    def handle(message: Message, session: Any) -> None:
        begun.append(message.body)
        hang.wait(2 * LIMIT)

    queue.send_many(["one", "two", "three"])
    concurrency = 1 if queue.engine.dialect.name == "sqlite" else 2
    options = {"concurrency": concurrency, "grace": 0.3, "sessions": sessionmaker(queue.engine)}
    with Running(queue.worker(handle, **options)):
        until(lambda: len(begun) == concurrency)
    found: list[Any] = []
    until(lambda: found.extend(bodies(queue.receive(5))) or len(found) == 3)
    assert sorted(found) == ["one", "three", "two"]


@pytest.mark.engines("sqlite-wal")
def test_a_heartbeat_that_waits_for_the_lock_delays_no_timeout(database, hang):
    """E2: it holds the worker's lock, and waits for that of a handler, as long as SQLite does."""
    engine = database.engine(connect_args={"timeout": 60})
    make_tables(engine)

    def handle(message: Message, session: Any) -> None:
        if message.receives == 1 and message.body == "hangs":
            hang.wait(2 * LIMIT)

    with Queue(engine, "beaten", visibility=0.3) as beaten:
        beaten.send_many(["hangs", "a", "b"])
        options = {"sessions": sessionmaker(engine), "retry": lambda receives: 0.0}
        with Running(beaten.worker(handle, timeout=1, grace=1, **options)):
            until(lambda: left(beaten) == 0)
    engine.dispose()


@pytest.mark.engines("postgresql")
@pytest.mark.full
def test_handlers_that_hang_keep_no_place_in_the_pool(database, hang):
    """E2: more of them than the pool has connections."""
    engine = database.engine(pool_size=3, max_overflow=0, pool_timeout=2)
    make_tables(engine)
    seen: list[Any] = []

    def handle(message: Message, session: Any) -> None:
        seen.append(message.body)
        if message.body == "hangs":
            hang.wait(2 * LIMIT)

    with Queue(engine, "small", max_receives=1) as small:
        small.send_many(["hangs"] * 4 + ["good"])
        sessions = sessionmaker(engine)
        with Running(small.worker(handle, sessions=sessions, timeout=1, grace=1)):
            until(lambda: left(small) == 0)
        assert (small.metrics().dead, seen.count("good")) == (4, 1)
    engine.dispose()


@pytest.mark.needs("row-locks")
@pytest.mark.full
def test_a_message_that_cannot_be_failed_holds_up_no_other(queue, hang, caplog):
    """E2: its handler has opened a transaction that the worker does not know, and left it open."""
    seen: list[Any] = []
    sessions: list[Any] = []

    def handle(message: Message) -> None:
        if message.body == "leaves its transaction open" and not sessions:
            sessions.append(sessionmaker(queue.engine)())
            queue.delete(message, session=sessions[0])
            raise ValueError("and fails")
        seen.append(message.body)

    queue.send_many(["leaves its transaction open", "good"])
    with Running(queue.worker(handle, retry=lambda receives: 0.0)):
        until(lambda: "good" in seen)
        assert "could not be failed" in caplog.text
        sessions[0].rollback()
        until(lambda: len(seen) == 2)
    sessions[0].close()


@pytest.mark.full
@pytest.mark.anyio
async def test_a_task_that_does_not_end_when_it_is_cancelled(async_engine, sync):
    """E2: its message fails and comes again; the worker ends without it."""
    seen: list[Any] = []

    over, before = asyncio.Event(), len(asyncio.all_tasks())

    async def handle(message: Any, session: Any) -> None:
        seen.append((message.body, message.receives))
        await session.execute(effect_of(ours, message))
        while message.body == "hangs" and message.receives == 1 and not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(over.wait(), 2 * LIMIT)

    async with AsyncQueue(async_engine, "real", visibility=5) as ours:

        async def empty() -> bool:
            found = await ours.metrics(exact=True)
            return found.waiting + found.hidden == 0

        worker = ours.worker(
            handle,
            sessions=async_sessionmaker(async_engine),
            timeout=1.5,
            grace=1,
            retry=lambda receives: 0.0,
        )
        await ours.send_many(["hangs", "a"])
        running = asyncio.create_task(worker.run())
        await until_awaited(empty)
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert sorted(seen) == [("a", 1), ("hangs", 1), ("hangs", 2)]
        assert effects(ours, sync) == 2
        over.set()
        await until_awaited(lambda: len(asyncio.all_tasks()) == before)
        assert effects(ours, sync) == 2


@pytest.mark.engines("postgresql", "mariadb")
def test_a_transaction_that_is_no_handlers_is_never_ended(queue, hang):
    """E2: another program has locked the message of a handler without a transaction."""
    begun = threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        hang.wait(2 * LIMIT)

    queue.send("hangs")
    worker = queue.worker(handle, timeout=0.3, retry=lambda receives: 30.0, grace=0.1)
    with Running(worker), queue.engine.connect() as other:
        assert begun.wait(LIMIT)
        locked = select(queue.tables.messages.c.id).with_for_update()
        process = other.scalar(text("SELECT 1"))
        other.execute(locked).all()
        until(lambda: not worker._held.running)
        assert other.scalar(text("SELECT 1")) == process
        other.rollback()


@pytest.mark.parametrize("with_session", [True, False])
@pytest.mark.full
def test_a_handler_that_returns_while_it_is_given_up(queue, hang, monkeypatch, with_session):
    """E2: it returns between the look at its time and the end of its transaction.

    With a session its effect is stored, and its message is handled. Without one the message comes
    again, as at every end after the timeout.
    """
    heard: list[Any] = []
    returned = threading.Event()

    def handle(message: Message, session: Any = None) -> None:
        if session is not None:
            session.execute(effect_of(queue, message))
        if message.receives == 1:
            hang.wait(2 * LIMIT)

    options = {"sessions": sessionmaker(queue.engine)} if with_session else {}
    worker = queue.worker(handle, timeout=1.5, retry=lambda receives: 0.0, grace=5, **options)
    end, over = worker._transactions.end, worker._transactions.over

    def note_return(message: Message) -> None:
        over(message)
        returned.set()

    async def let_it_return(message: Message) -> None:
        hang.set()
        assert returned.wait(LIMIT)
        await end(message)

    monkeypatch.setattr(worker._transactions, "end", let_it_return)
    monkeypatch.setattr(worker._transactions, "over", note_return)
    queue.send("late")
    with events.listening(heard.append, written=False), Running(worker):
        until(lambda: any(type(one) is events.Handled for one in heard))
        until(lambda: left(queue) == 0)
        until(lambda: worker._started == 1)  # its thread has not become one too many
        assert not worker._left
    told = [(type(one).__name__, one.receives) for one in heard if hasattr(one, "receives")]
    assert told == [("Handled", 1)] if with_session else [("HandlingFailed", 1), ("Handled", 2)]
    assert effects(queue, queue.engine) == int(with_session)
    assert not worker._held.locked


@pytest.mark.engines("sqlite-wal")
def test_a_worker_goes_on_if_no_thread_can_replace_one_that_hangs(queue, hang, monkeypatch):
    """The thread that hung handles the next messages, when it returns."""
    handled, full = [], threading.Event()

    def handle(message: Message) -> None:
        if message.body == "hangs":
            hang.wait(2 * LIMIT)
        handled.append((message.body, message.receives))

    def no_thread() -> None:
        full.set()
        raise RuntimeError("can't start new thread")

    worker = queue.worker(handle, timeout=1.0, retry=lambda receives: 600.0, grace=5)
    queue.send("hangs")
    with Running(worker):
        until(lambda: worker._held.running)
        monkeypatch.setattr(worker, "_start_thread", no_thread)
        assert full.wait(LIMIT)
        hang.set()
        until(lambda: handled)
        queue.send("next")
        until(lambda: len(handled) > 1)
    assert handled == [("hangs", 1), ("next", 1)]
    assert left(queue) == 1  # the first one, for its next attempt


@pytest.mark.engines("sqlite-wal")
def test_a_lock_that_is_noted_for_a_message_given_up_is_forgotten(queue):
    """E2: its handler gets the lock after that; receipts would be kept for ever."""
    queue.send("late")
    [message] = queue.receive()
    held = HeldMessages()
    held.take([message])
    assert held.begin(message)
    held.has_lock(message)
    assert list(held.locked) == [message.receipt]
    held.let_go(message)
    held.has_lock(message)
    assert not held.locked
