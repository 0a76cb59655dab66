"""Waiting for messages: soon, and without asking all the time."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from optilock._coroutines import run_to_end
from optilock.queue import Queue
from optilock.queue.connections import FEW
from optilock.queue.waiters import LONGEST, Ear, ListeningWaiter, PollingWaiter
from tests.support.queues import Asked, lose_all_connections, made, make_tables
from tests.support.waiting import LIMIT, until

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def queue(engine) -> Iterator[Queue]:
    make_tables(engine)
    with Queue(engine, "work") as queue:
        yield queue


class Waiting(threading.Thread):
    """Receives with ``wait=``: for far longer than a test waits for its end."""

    def __init__(self, queue: Queue, seconds: float = 10 * LIMIT) -> None:
        super().__init__()
        self.queue, self.seconds = queue, seconds
        self.found: list[object] = []
        self.start()

    def run(self) -> None:
        self.found = [message.body for message in self.queue.receive(wait=self.seconds)]

    def end(self, within: float = LIMIT) -> list[object]:
        self.join(within)
        assert not self.is_alive()
        return self.found


def until_somebody_waits(queue: Queue, engine: Any, *, waits: bool = True) -> None:
    """On PostgreSQL: whoever waits listens by then, and looks once more; or nobody waits now."""
    store = queue._operations.store
    with engine.connect() as connection:
        until(lambda: store.is_watched(connection) is waits)


def test_a_message_that_is_sent_wakes_who_waits(queue, engine):
    asked = Asked(engine)
    waiting = Waiting(queue)
    until(asked.has_looked)
    queue.send("hello")
    assert waiting.end() == ["hello"]


def test_one_that_becomes_visible_does_too(queue):
    queue.send("hello", delay=0.3)
    assert [message.body for message in queue.receive(wait=LIMIT)] == ["hello"]


def test_one_that_a_dead_worker_had_comes_back_by_itself(queue):
    queue.send("hello")
    queue.receive(visibility=0.3)
    (message,) = queue.receive(wait=LIMIT)
    assert message.receives == 2


@pytest.mark.engines("postgresql")
@pytest.mark.full
def test_who_waits_asks_nothing(queue, engine):
    asked = Asked(engine)
    waiting = Waiting(queue)
    until(asked.is_silent)
    until_somebody_waits(queue, engine)
    queue.send_many(["a", "b"])
    waiting.end()


@pytest.mark.engines("sqlite-wal", "mariadb")
@pytest.mark.full
def test_elsewhere_it_asks_once_a_second(queue, engine):
    waiter = queue.waiter()
    assert isinstance(waiter, PollingWaiter)
    while waiter._interval < LONGEST:
        waiter.wait(0.1)
    asked = Asked(engine)
    waiter.wait(2)
    waiter.wait(0.1)
    waiter.close()
    assert 1 < len(asked.times) <= 4


@pytest.mark.engines("postgresql")
def test_nobody_is_told_where_nobody_waits(engine):
    with (
        made(engine, "told") as queue,
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listener,
    ):
        until_somebody_waits(queue, engine, waits=False)  # who did in another test may be leaving
        listener.execute(text(f"LISTEN {queue._operations.store.channel}"))
        driver = listener.connection.driver_connection
        queue.send("a")
        queue.send("b", dedup="b")
        assert list(driver.notifies(timeout=0.2)) == []
        queue.purge()
        waiting = Waiting(queue)
        until_somebody_waits(queue, engine)
        queue.send("c")
        assert waiting.end() == ["c"]
        assert next(driver.notifies(timeout=LIMIT)).channel == queue._operations.store.channel


@pytest.mark.engines("postgresql")
def test_a_sender_that_was_open_before_loses_no_wake_up(queue, engine):
    with Session(engine) as session:
        queue.send("slow", session=session)
        asked = Asked(engine)
        waiting = Waiting(queue)
        until(lambda: asked.has_looked(2))
        session.commit()
    assert waiting.end() == ["slow"]


@pytest.mark.engines("postgresql")
def test_several_wait_and_each_message_wakes_one_of_them(queue, engine):
    others = [Queue(engine, "work") for _ in range(3)]
    asked = Asked(engine)
    waiting = [Waiting(other) for other in others]
    until(lambda: asked.has_looked(3))
    for number in range(3):
        queue.send(number)
        until(lambda: sum(one.is_alive() for one in waiting) == 2 - number)  # noqa: B023
    assert sorted(one for thread in waiting for one in thread.end()) == [0, 1, 2]
    for other in others:
        other.close()


@pytest.mark.engines("postgresql")
@pytest.mark.full
def test_no_wake_up_is_lost(queue, engine):
    """60 messages, each sent at another moment of the receiver's way into its wait."""
    with Queue(engine, "work") as receiver:
        for number in range(60):
            asked = Asked(engine)
            waiting = Waiting(receiver)
            until(lambda: asked.has_looked(number % 3), every=0)  # noqa: B023
            queue.send(number)
            assert waiting.end(LIMIT / 10) == [number]
            queue.purge()


@pytest.mark.engines("postgresql")
def test_without_listening_it_asks(engine):
    make_tables(engine)
    with Queue(engine, "work", listen=False) as queue:
        waiter = queue.waiter()
        assert isinstance(waiter, PollingWaiter)
        waiter.close()
        queue.send("a", delay=0.2)
        assert queue.receive(wait=LIMIT)


@pytest.mark.engines("postgresql")
def test_who_waits_can_be_woken(queue):
    waiter = queue.waiter()
    assert isinstance(waiter, ListeningWaiter)
    threading.Timer(0.2, waiter.wake).start()
    waiter.wait(10 * LIMIT)
    waiter.close()


@pytest.mark.engines("postgresql")
def test_who_waits_hears_others_beside_itself(engine):
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as own, autocommit.connect() as other:
        ear = Ear(own.connection.driver_connection)
        own.execute(text("LISTEN heard"))
        own.execute(text("NOTIFY heard"))
        assert not ear.heard
        other.execute(text("NOTIFY heard"))
        own.execute(text("NOTIFY heard"))  # both come with its answer, this one last
        assert ear.heard
        ear.close()


@pytest.mark.engines("postgresql")
def test_a_waiter_whose_connection_ended_while_it_rested_is_replaced(queue, database):
    for _ in range(2):
        assert queue.receive(wait=0.05) == []
        lose_all_connections(database)


@pytest.mark.engines("postgresql")
def test_many_receivers_that_waited_leave_few_connections(queue, database):
    listening = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many waited'")
    engine = create_engine(database.url, connect_args={"application_name": "many waited"})
    with Queue(engine, "work") as ours:
        for one in [Waiting(ours, 0.5) for _ in range(8)]:
            one.end()
        ours.connections.close()
        engine.dispose()  # which the waiters have left
        with queue.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            until(lambda: connection.scalar(listening) <= FEW)
            assert connection.scalar(listening)


@pytest.mark.engines("postgresql")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_listens_on_a_connection_of_its_own(queue):
    def listening() -> int:
        waiter = run_to_end(queue._free_waiter())
        run_to_end(queue._resting.put(queue.connections.home(), waiter))
        return waiter._ear._own

    def child(said: Any) -> None:
        queue.engine.dispose(close=False)
        said.send(listening())

    assert queue.receive(wait=0.05) == []
    ours = listening()
    assert ours == listening()  # it rests in between
    assert in_a_fork(child) != ours


@pytest.mark.engines("mariadb")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_sends_nothing_on_a_connection_that_its_parent_keeps(queue):
    """The pool would roll back on it as soon as the child has no use for it."""
    number = text("SHOW SESSION STATUS LIKE 'Com_rollback'")

    def child(said: Any) -> None:
        queue.engine.dispose(close=False)
        queue.send("from the child")
        gc.collect()
        said.send("done")

    def rollbacks() -> Any:
        return queue.connections.run(lambda connection: connection.execute(number).one()[1])

    before = rollbacks()
    assert in_a_fork(child) == "done"
    assert rollbacks() == before


def in_a_fork(work: Any) -> Any:
    forking = multiprocessing.get_context("fork")
    heard, said = forking.Pipe()
    process = forking.Process(target=work, args=(said,))
    process.start()
    assert heard.poll(20)
    process.join(20)
    return heard.recv()
