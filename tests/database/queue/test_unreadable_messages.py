"""A stored message that cannot be read is one dead letter, and its neighbours are handled."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pytest
from sqlalchemy import Engine, text

from optilock import ConfigurationError
from optilock.queue import AsyncQueue, Draft, Message, Queue, Unreadable
from tests.database.queue.test_async_queue import runner as runner
from tests.database.queue.test_async_queue import sync as sync
from tests.database.queue.test_worker import Running, left
from tests.support.queues import bodies
from tests.support.queues import queue as queue
from tests.support.waiting import LIMIT, until, until_awaited

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

DEEP = "[" * 100_000 + "]" * 100_000
#: What another program, or a restore, may leave in a column.
STORED: list[tuple[str, Any]] = [
    *(("body", given) for given in ("{not json", "", '{"a": 1} b', "'a'", "NaN", "[-Infinity]")),
    *(("body", given) for given in ("1e999", "9" * 5_000, DEEP, '"\n"', "\ufeff1")),
    *(("headers", given) for given in ("{not json", "[1]", '"a"', "null", DEEP)),
]
#: As SQL of SQLite, whose columns may have any type of value.
OF_SQLITE = [
    *(("body", sql) for sql in ("x'ff'", "CAST(x'22ff22' AS TEXT)", "CAST(x'22eda08022' AS TEXT)")),
    *(("headers", sql) for sql in ("x'ff'", "CAST(x'7bff7d' AS TEXT)", "7")),
    *(("sent_at", sql) for sql in ("'yesterday'", "5")),
    ("expires_at", "'never'"),
]


def store(engine: Engine, number: int, column: str, value: Any, sql: str = ":value") -> None:
    with engine.begin() as connection:
        statement = text(f"UPDATE optilock_message SET {column} = {sql} WHERE id = :id")
        connection.execute(statement, {"id": number, "value": value} if value else {"id": number})


def spoilt(queue: Queue) -> list[int]:
    """Messages that cannot be read, each between two that can."""
    found = []
    ways = [(column, value, ":value") for column, value in STORED if value]
    ways.append(("body", None, "''"))
    if queue.engine.dialect.name == "sqlite":
        ways += [(column, None, sql) for column, sql in OF_SQLITE]
    for column, value, sql in ways:
        sent = queue.send_many(["good", Draft("bad", headers={"trace": "1"})])
        store(queue.engine, sent[1].id, column, value, sql)
        found.append(sent[1].id)
    return found


def test_each_is_one_dead_letter_and_its_neighbours_are_handled(queue):
    wrong = spoilt(queue)
    seen: list[Any] = []
    assert [one.id for one in queue.peek(100) if isinstance(one.body, Unreadable)] == wrong
    with Running(queue.worker(lambda message: seen.append(message.body), concurrency=2)):
        until(lambda: left(queue) == 0)
    assert seen == ["good"] * len(wrong)
    letters = queue.dead_letters.peek(100)
    assert [(one.id, one.receives) for one in letters] == [(number, 1) for number in wrong]
    for one in letters:
        if isinstance(one.body, Unreadable):  # a bad time of its end is gone with its end
            assert one.last_error == one.body.reason
        assert re.match("The (body|headers|times) cannot be read: ", one.last_error)
        assert len(one.last_error) < 200
    if queue.engine.dialect.name == "sqlite":
        assert letters[-7].body.body == '"\\xed\\xa0\\x80"'
    assert queue.metrics().dead == len(wrong)


def test_a_dead_letter_can_be_received_and_deleted_and_is_not_put_back(queue):
    """The others are, whichever come first."""
    unreadable = spoilt(queue)
    queue.receive(100)
    first, *others = queue.dead_letters.receive(100)
    assert [first.id, *(one.id for one in others)] == unreadable
    queue.dead_letters.give_back([first])
    queue.dead_letters.delete(*others)
    queue.purge()
    queue.send("again")
    for _ in range(5):
        (message,) = queue.receive()
        queue.fail(message, "no")
    assert queue.metrics().dead == 2
    assert (queue.redrive(1), queue.redrive(1), queue.metrics().dead) == (1, 0, 1)
    assert bodies(queue.receive(10)) == ["again"]


def test_one_of_a_group_does_not_hold_it_up(queue):
    first, _ = queue.send_many([Draft("bad", group="g"), Draft("good", group="g")])
    store(queue.engine, first.id, "body", "{")
    assert queue.receive() == []
    (message,) = queue.receive()
    assert message.body == "good"
    (letter,) = queue.dead_letters.receive()
    assert letter.headers == {"optilock-group": "g"}
    store(queue.engine, letter.id, "body", '"repaired"')
    queue.dead_letters.give_back([letter])
    assert queue.redrive(1) == 1
    queue.delete(message)
    assert bodies(queue.receive()) == ["repaired"]


@pytest.mark.engines("postgresql")
def test_a_message_that_never_expires_by_another_programs_word_is_read(queue, engine):
    """No driver has a time for infinity."""
    sent = queue.send("a")
    store(engine, sent.id, "expires_at", None, "'infinity'")
    assert queue.peek()[0].expires_at is None
    (message,) = queue.receive()
    assert (message.body, message.expires_at) == ("a", None)


@pytest.mark.anyio
async def test_the_same_for_asyncio(async_engine, sync):
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)

    async with AsyncQueue(async_engine, "work") as ours:
        _, bad, _ = await ours.send_many(["a", "bad", "b"])
        store(sync, bad.id, "body", DEEP)
        assert isinstance((await ours.peek(3))[1].body, Unreadable)
        worker = ours.worker(handle)
        running = asyncio.create_task(worker.run())
        await until_awaited(lambda: len(seen) == 2)
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert [one.id for one in await ours.dead_letters.peek(5)] == [bad.id]
    assert seen == ["a", "b"]


def test_what_a_receiver_may_not_read_is_not_sent(queue):
    """One fixed depth, however deep the stack of the sender is; a body, headers, or a change."""

    def nested(levels: int) -> Any:
        value: Any = 1
        for level in range(levels):
            value = [value] if level % 2 else {"a": value}
        return value

    for deep in (nested(201), nested(900)):
        for call in (
            lambda deep=deep: queue.send(deep),
            lambda deep=deep: queue.send("a", headers={"a": deep}),
            lambda deep=deep: queue.update(queue.send("b"), visibility=0, body=deep),
        ):
            with pytest.raises(ConfigurationError, match=r"200 lists and dicts|RecursionError"):
                call()
    queue.send(nested(200))
    queue.send("[" * 1_000)
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(ConfigurationError, match="4,300 digits"):
            queue.send([10**4_300])
    finally:
        sys.set_int_max_str_digits(before)
    queue.send("9" * 5_000)
    assert [body for body in bodies(queue.receive(10)) if body != "b"] == [
        nested(200),
        "[" * 1_000,
        "9" * 5_000,
    ]
