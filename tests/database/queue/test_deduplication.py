"""Deduplication keys: their rows are counted and removed, and a send waits for no handler."""

from __future__ import annotations

import pickle

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.orm import Session

from optilock.queue import AsyncQueue, DeduplicationKeyInUse, Draft, MessageNotFound, Queue, queues
from optilock.testing import count_statements
from tests.database.queue.test_async_queue import runner as runner
from tests.database.queue.test_async_queue import sync as sync
from tests.database.queue.test_protections import soon
from tests.support.queues import CLOCK, bodies, made, shift
from tests.support.queues import queue as queue

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def rows(queue: Queue) -> int:
    with queue.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(queue.tables.messages)) or 0


def look_again(queue: Queue) -> None:
    """As if the time between two looks at the keys were over."""
    queue._operations._keys._due = 0


def test_rows_that_only_keep_a_key_are_counted_and_removed_by_a_receive(queue, engine):
    queue.send_many([Draft(n, dedup=f"k{n}", group="g" if n % 2 else None) for n in range(6)])
    while found := queue.receive(10):
        queue.delete(*found)
    assert queue.metrics() == queue.metrics(exact=True)
    assert (queue.metrics().waiting, queue.metrics().keys) == (0, 6)
    look_again(queue)
    assert (queue.receive(), rows(queue)) == ([], 6)
    shift(engine, 301)
    queue.send("next", dedup="k0")
    assert queue.metrics().keys == 5
    (summary,) = [one for one in queues(engine) if one.name == "work"]
    assert summary.keys == 5
    look_again(queue)
    with count_statements(engine) as counted:
        assert bodies(queue.receive()) == ["next"]
        looked = counted.count
        queue.receive()
    assert looked > counted.count - looked
    assert (queue.metrics().keys, rows(queue)) == (0, 1)


def test_a_key_that_a_sender_is_removing_is_not_waited_for(queue, engine):
    queue.send("a", dedup="k")
    queue.delete(*queue.receive())
    shift(engine, 301)
    queue.send("b")
    look_again(queue)
    if engine.dialect.name == "sqlite":
        assert bodies(queue.receive()) == ["b"]
        return
    with Session(engine) as session:
        queue.send("a", dedup="k", session=session)
        assert bodies(soon(queue.receive)) == ["b"]
        session.rollback()
    assert (queue.metrics().keys, rows(queue)) == (1, 2)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("window", [300, 0])
def test_a_send_does_not_wait_for_the_handler_of_the_first_message(engine, group, window):
    """The message is in the queue until the handler's transaction commits."""
    queue = made(engine, dedup_window=window)
    first = queue.send("a", dedup="k", group=group)
    (message,) = queue.receive()
    with Session(engine) as session:
        queue.delete(message, session=session)
        again, other = soon(lambda: queue.send_many([Draft("a", dedup="k", group=group)] * 2))
        assert (again.duplicate, again.id, again.receives) == (True, first.id, 1)
        assert (other.duplicate, other.id) == (True, first.id)
        session.rollback()
    shift(engine, 60)
    (message,) = queue.receive()
    assert message.id == first.id
    with Session(engine) as session:
        queue.delete(message, session=session)
        session.commit()
    assert queue.send("a", dedup="k", group=group).duplicate == bool(window)
    queue.close()


@pytest.mark.engines("postgresql")
def test_a_send_in_a_transaction_does_not_wait_either(queue, engine):
    first = queue.send("a", dedup="k")
    (message,) = queue.receive()
    with Session(engine) as handler, Session(engine) as sender:
        queue.delete(message, session=handler)
        again = soon(lambda: queue.send("a", dedup="k", session=sender))
        assert (again.duplicate, again.id) == (True, first.id)
        assert sender.connection().exec_driver_sql("SHOW lock_timeout").scalar() == "0"
        handler.rollback()


@pytest.mark.needs("row-locks")
def test_a_sender_that_has_not_ended_is_waited_for_a_moment(database, engine):
    """Whether its message is sent is unknown, so the answer is neither yes nor no."""
    queue = made(engine)
    short = database.engine()
    limit = {
        "postgresql": "SET lock_timeout = 50",
        "mariadb": "SET innodb_lock_wait_timeout = 1",
    }[database.family]

    @event.listens_for(short, "connect")
    def limited(connection, record):
        with connection.cursor() as cursor:
            cursor.execute(limit)
        connection.commit()

    with Queue(short, "work", clock=CLOCK) as ours, Session(engine) as session:
        first = queue.send("a", dedup="k", session=session)
        with pytest.raises(DeduplicationKeyInUse, match="Nothing was sent") as caught:
            ours.send("a", dedup="k")
        assert pickle.loads(pickle.dumps(caught.value)).queue == "work"
        assert ours.send("b", dedup="other").duplicate is False
        session.rollback()
        sent = ours.send("a", dedup="k")
        assert (sent.duplicate, sent.id == first.id) == (False, False)
    short.dispose()
    queue.close()


@pytest.mark.engines("postgresql")
def test_a_send_with_a_key_has_a_limit_of_its_own_and_no_statement_more(queue, engine):
    queue.send("a", dedup="a")
    with count_statements(engine) as counted:
        queue.send("b", dedup="b")
    assert counted.count == 4, "BEGIN, the INSERT, the notification and COMMIT"
    [kept] = queue.connections._idle
    assert kept.exec_driver_sql("SHOW lock_timeout").scalar() == "0"


@pytest.mark.anyio
async def test_keys_for_asyncio(async_engine, sync):
    """With each async driver; ``find`` and ``cancel`` are the same calls."""

    async with AsyncQueue(async_engine, "work") as ours:
        first = await ours.send("a", dedup="k", group="g", headers={"a": 1}, ttl=None)
        again = await ours.send("a", dedup="k", group="g")
        assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
        (message,) = await ours.receive()
        found = await ours.find(first)
        assert (found.receives, found.visible_at) == (1, message.visible_at)
        assert not await ours.cancel(first)
        assert await ours.cancel(first, held=True)
        assert (await ours.metrics()).keys == 0


def test_a_message_that_a_receiver_has_is_cancelled_if_that_is_asked_for(queue):
    first, _ = queue.send_many([Draft("a", group="g"), Draft("b", group="g")])
    (message,) = queue.receive()
    assert queue.find(first).visible_at == message.visible_at
    assert not queue.cancel(first)
    assert queue.cancel(first, held=True)
    assert (queue.find(first), queue.cancel(first, held=True)) == (None, False)
    assert bodies(queue.receive()) == ["b"]
    with pytest.raises(MessageNotFound):
        queue.delete(message)
