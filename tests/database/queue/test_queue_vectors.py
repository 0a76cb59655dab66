"""The recorded answers of Azure's Queue service (``tests/vectors/queue.json`` says where from).

A queue of ours is there as soon as its tables are: "no queue" means no tables. It has no metadata,
so nothing of it could be overwritten, and no call takes a condition. Times are moved by moving the
clock of the database, a SQL expression.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from optilock import ConfigurationError
from optilock.queue import Message, Queue, QueueError, QueueNotFound
from tests.support.queues import CLOCK, made, shift

VECTORS = {
    one["id"]: one
    for one in json.loads((Path(__file__).parents[2] / "vectors" / "queue.json").read_text())[
        "vectors"
    ]
}
EMPTY = sorted(name for name, one in VECTORS.items() if one["given"] == "empty queue")
APART = {"queue.metadata_lww", "queue.missing_queue.receive", "queue.sdk.stale_receipt"}
NAMES = {
    "PopReceiptMismatch": "ReceiptExpired",
    "MessageNotFound": "MessageNotFound",
    "InvalidQueryParameterValue": "ConfigurationError",
    "OutOfRangeQueryParameterValue": "ConfigurationError",
}
DONE = {"send": 201, "peek": 200, "receive": 200, "count": 200, "delete": 204, "update": 204}


def test_each_vector_is_run():
    assert set(VECTORS) == {*EMPTY, *APART}


@pytest.fixture
def queue(engine):
    queue = made(engine)
    yield queue
    queue.close()


@pytest.mark.full
@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("name", EMPTY)
def test_a_vector(queue, engine, name):
    Run(queue, engine).steps(VECTORS[name]["steps"])


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_every_vector(queue, engine):
    """The same in one test."""
    for name in EMPTY:
        Run(queue, engine).steps(VECTORS[name]["steps"])
        queue.purge()


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_without_tables_there_is_no_queue(engine):
    (step,) = VECTORS["queue.missing_queue.receive"]["steps"]
    queue = Queue(engine, "work")
    with pytest.raises(QueueNotFound, match="create_optilock_tables") as caught:
        queue.receive()
    assert caught.value.status == step["expect"]["status"]
    queue.close()


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
def test_a_stale_receipt_deletes_and_updates_nothing(queue, engine):
    queue.send("a")
    stale = queue.receive(visibility=1)[0]
    shift(engine, 2)
    right = queue.receive(visibility=30)[0]
    calls = {
        "delete_stale": lambda: queue.delete(stale),
        "update_stale": lambda: queue.update(stale, visibility=5),
        "delete_right": lambda: queue.delete(right),
        "delete_again": lambda: queue.delete(right),
    }
    for step in VECTORS["queue.sdk.stale_receipt"]["steps"]:
        assert answer(calls[step["op"]])[:2] == wanted(step, 204)


def answer(call: Any) -> tuple[int | None, str | None, Any]:
    try:
        return None, None, call()
    except (QueueError, ConfigurationError) as error:
        return getattr(error, "status", 400), type(error).__name__, None


def wanted(step: Any, good: int) -> tuple[int | None, str | None]:
    expect = step["expect"]
    if expect["status"] == good:
        return None, None
    return expect["status"], NAMES.get(expect["error_code"], "ConfigurationError")


class Run:
    """The steps of one vector, on a queue."""

    def __init__(self, queue: Queue, engine: Any) -> None:
        self.queue, self.engine = queue, engine
        self.names: dict[str, Any] = {}

    def steps(self, steps: list[Any]) -> None:
        for step in steps:
            args = step["args"]
            if step["op"] == "sleep":
                shift(self.engine, args["seconds"])
                continue
            *failed, result = answer(lambda: getattr(self, step["op"])(**step["args"]))  # noqa: B023
            assert tuple(failed) == wanted(step, DONE[step["op"]]), step
            if "as" in args and result is not None:
                self.names[args["as"]] = result[0] if step["op"] == "receive" else result
            if failed == [None, None]:
                self.check(step["op"], step["expect"]["effects"], result, args)
            elif "count_after" in step["expect"]["effects"]:
                assert self.count() == step["expect"]["effects"]["count_after"]

    # -- calls ---------------------------------------------------------------------------------

    def send(self, text: str, ttl: Any = 604800, **_: Any) -> Any:
        return self.queue.send(text, ttl=None if ttl == -1 else ttl)

    def peek(self) -> Any:
        return self.queue.peek(32)

    def receive(self, vis: float = 30, **_: Any) -> Any:
        return self.queue.receive(visibility=vis)

    def count(self) -> int:
        found = self.queue.metrics()
        return found.waiting + found.hidden

    def delete(self, message: str, pop_receipt: Any) -> None:
        self.queue.delete(self.shown(message, pop_receipt))

    def update(
        self, message: str, pop_receipt: Any, visibility_timeout: Any, **changed: Any
    ) -> Any:
        body = {"body": changed["text"]} if "text" in changed else {}
        given = self.shown(message, pop_receipt)
        return self.queue.update(given, visibility=visibility_timeout, **body)

    def shown(self, message: str, receipt: str | None) -> Any:
        if message == "X":  # one message, with the receipt of the other
            return replace(self.names["R1"], receipt=self.names["R2"].receipt)
        if message == "GONE":
            return replace(self.names["R1"], id=10**9, receipt=f"{10**9}.{'0' * 32}")
        named = self.names[message]
        if receipt is None or not receipt.startswith("of "):
            return replace(named, receipt=receipt)
        return named

    # -- effects -------------------------------------------------------------------------------

    def check(self, op: str, effects: Any, result: Any, args: Any) -> None:
        if op == "count":
            assert result == effects["count"]
        elif op == "delete":
            assert self.count() == effects["count_after"]
        elif op == "send":
            self.check_sent(effects, result)
        elif op == "update":
            assert result.receipt != self.names[args["message"]].receipt
        else:
            self.check_messages(op, effects["messages"], result)

    def check_sent(self, effects: Any, result: Any) -> None:
        assert result.receipt
        m = self.queue.tables.messages.c
        with self.engine.connect() as connection:
            found = select(m.sent_at, m.visible_at, m.expires_at).where(m.id == result.id)
            sent, visible, expires = connection.execute(found).one()
        # The moved clock is read for each of them, and the vectors have whole seconds.
        near = pytest.approx(effects["next_visible_minus_insertion"], abs=1)
        assert (visible - sent).total_seconds() == near
        life = effects["expiration_minus_insertion"]
        if life == "never":
            assert expires is None
        else:
            assert (expires - sent).total_seconds() == pytest.approx(life, abs=1)

    def check_messages(self, op: str, wanted: Any, result: list[Message]) -> None:
        assert [one.body for one in result] == [one["text"] for one in wanted]
        for message, one in zip(result, wanted, strict=True):
            assert message.receives == one["dequeue_count"]
            if op == "peek":
                assert message.receipt is None
                assert message.visible_at is None
                continue
            for name in one["same_id_as"]:
                assert self.names[name].id == message.id
            assert message.visible_at is not None
            with self.engine.connect() as connection:
                now = connection.scalar(select(CLOCK))
            hidden = (message.visible_at - now).total_seconds()
            assert hidden == pytest.approx(one["next_visible_in_seconds"], abs=1)
