"""Whatever a handler raises, its message fails and the worker goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from optilock.queue import AsyncQueue, Message, MessageNotFound, Queue
from optilock.queue.handler_failures import failure_of
from optilock.queue.worker_state import Settings, backoff
from tests.database.queue.test_async_queue import runner as runner
from tests.database.queue.test_async_queue import sync as sync
from tests.database.queue.test_worker import Running, left
from tests.database.queue.test_worker import queue as queue
from tests.support.waiting import LIMIT, turn, until, until_awaited

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


def raising(error: BaseException) -> Any:
    def call(*_: Any) -> Any:
        raise error

    return call


def unprintable(error: BaseException) -> BaseException:
    """Return an error whose texts raise another one."""
    names = ("__str__", "__repr__", "__format__")
    return type("Unprintable", (Exception,), dict.fromkeys(names, raising(error)))()


class Meta(type):
    __name__ = property(raising(RuntimeError("no name")))


class Nameless(Exception, metaclass=Meta):
    pass


class Classless(Exception):
    __class__ = property(raising(RuntimeError("no class")))


#: The error, and how its stored text begins.
RAISED: dict[str, tuple[BaseException, str]] = {
    "unprintable": (unprintable(ValueError("x")), "Unprintable: (it has no text: str() of it"),
    "interrupted": (unprintable(KeyboardInterrupt()), "Unprintable: (it has no text"),
    "ended": (unprintable(SystemExit(3)), "Unprintable: (it has no text"),
    "number": (type("Number", (Exception,), {"__str__": lambda _: 7})(), "Number: (it has no"),
    "deep": (unprintable(RecursionError("x")), "Unprintable: (it has no text"),
    "group": (ExceptionGroup("some", [ValueError("a")]), "ExceptionGroup: some (1 sub-exc"),
    "nameless": (Nameless("text"), "Nameless: text"),
    "classless": (Classless("text"), "Classless: text"),
    "exit": (SystemExit(3), "SystemExit: 3"),
    "ctrl-c": (KeyboardInterrupt("no"), "KeyboardInterrupt: no"),
    "closed": (GeneratorExit("no"), "GeneratorExit: no"),
    "cancelled": (asyncio.CancelledError("no"), "CancelledError: no"),
    "base": (type("Base", (BaseException,), {})("no"), "Base: no"),
    "nul": (ValueError("a\0b"), "ValueError: ab"),
    "surrogate": (ValueError("a\ud800b"), "ValueError: a?b"),
    "wide": (ValueError("\U0001f512"), "ValueError: \U0001f512"),
    "long": (ValueError("x" * 5_000_000), "ValueError: xxxx"),
    "without ids": (MessageNotFound.__new__(MessageNotFound, "x"), "MessageNotFound: x"),
}


def is_as_expected(letters: list[Message]) -> bool:
    found = {letter.body: letter.last_error or "" for letter in letters}
    wrong = {
        body: found.get(body, "")[:80]
        for body, (_, text) in RAISED.items()
        if not found.get(body, "").startswith(text)
    }
    assert not wrong
    assert max(map(len, found.values())) <= 2_000
    return True


def test_whatever_is_raised_fails_its_message(queue):
    """E1: and the messages after it are handled."""
    seen: list[Any] = []

    def handle(message: Message) -> None:
        if message.body in RAISED:
            raise RAISED[message.body][0]
        seen.append(message.body)

    with Queue(queue.engine, "evil", max_receives=1) as evil:
        evil.send_many([*RAISED, "good"])
        with Running(evil.worker(handle, concurrency=2)):
            until(lambda: left(evil) == 0)
            evil.send("later")
            until(lambda: "later" in seen)
        assert seen == ["good", "later"]
        assert is_as_expected(evil.dead_letters.peek(100))


@pytest.mark.anyio
async def test_whatever_a_task_raises_fails_its_message(async_engine, sync):
    """E1: SystemExit and KeyboardInterrupt do not end the event loop either."""
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        await turn()
        if message.body in RAISED:
            raise RAISED[message.body][0]
        seen.append(message.body)

    async with AsyncQueue(async_engine, "evil", max_receives=1) as evil:
        worker = evil.worker(handle, concurrency=2)
        running = asyncio.create_task(worker.run())
        await evil.send_many([*RAISED, "good"])

        async def empty() -> bool:
            found = await evil.metrics(exact=True)
            return found.waiting + found.hidden == 0

        await until_awaited(empty)
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert seen == ["good"]
        assert is_as_expected(await evil.dead_letters.peek(100))


@pytest.mark.parametrize(
    "retry",
    [raising(ZeroDivisionError()), raising(SystemExit()), lambda n: float("inf"), lambda n: "no"],
)
def test_a_retry_that_fails_ends_no_worker(queue, retry, monkeypatch):
    """E1: neither does one that returns no number, or too large a number."""
    monkeypatch.setattr("optilock.queue.worker_state.backoff", lambda receives: 0.0)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.receives)
        raise ValueError(message.body)

    queue.send("bad")
    with Running(queue.worker(handle, retry=retry)):
        until(lambda: seen)
        queue.send("next")
        until(lambda: len(seen) > 1)


def test_the_pause_after_the_5000th_delivery_is_a_number():
    """E1: with ``max_receives=None`` a message may fail for ever."""
    assert 150 <= backoff(5_000) <= 300
    message = Message(7, None, "7.x", 5_000, None, None, None)  # type: ignore[arg-type]
    assert Settings(retry=lambda receives: float("nan")).delay("q", message) >= 0


def test_a_text_that_the_database_refuses_is_stored_in_ascii(queue, monkeypatch):
    """E1: as in a PostgreSQL database whose encoding lacks a character."""
    from sqlalchemy.exc import DataError

    fail = queue._operations.fail

    def refuse(connection: Any, message: Any, failure: Any, *rest: Any, **more: Any) -> bool:
        if not failure.text.isascii():
            raise DataError("UPDATE", None, ValueError("no such character"))
        return fail(connection, message, failure, *rest, **more)

    monkeypatch.setattr(queue._operations, "fail", refuse)
    queue.send("a")
    seen: list[Any] = []

    def handle(message: Message) -> None:
        seen.append(message.last_error)
        if len(seen) == 1:
            raise ValueError("caf\u00e9")

    with Running(queue.worker(handle, retry=lambda receives: 0.0)):
        until(lambda: left(queue) == 0)
    assert seen == [None, "ValueError: caf?"]


def test_a_failure_is_read_once():
    failure = failure_of(ValueError("x"))
    assert failure_of(failure) is failure
    assert (failure.kind, failure.text) == ("ValueError", "ValueError: x")
