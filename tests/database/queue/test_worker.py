"""The loop that hands messages to a function."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.orm import sessionmaker

from optilock import ConfigurationError, events
from optilock.queue import Message, Queue, Worker
from tests.support.queues import make_tables
from tests.support.waiting import LIMIT, until, until_past

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


@pytest.fixture
def queue(database) -> Iterator[Queue]:
    slow = {"connect_args": {"timeout": 10}} if database.family == "sqlite" else {}
    engine = database.engine(**slow)
    make_tables(engine)
    with Queue(engine, "work", visibility=3) as queue:
        yield queue
    engine.dispose()


class Running:
    """A worker in a thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        assert self._error is None


def left(queue: Queue) -> int:
    found = queue.metrics(exact=True)
    return found.waiting + found.hidden


@pytest.mark.parametrize("concurrency", [1, 4])
def test_each_message_is_handled_and_deleted(queue, concurrency):
    seen: list[int] = []
    queue.send_many(range(25))
    with Running(queue.worker(lambda m: seen.append(m.body), concurrency=concurrency)):
        until(lambda: left(queue) == 0)
        queue.send("later")
        until(lambda: "later" in seen)
    assert sorted(map(str, seen)) == sorted([*map(str, range(25)), "later"])
    assert left(queue) == 0


def test_one_that_fails_comes_back_and_is_a_dead_letter_at_last(queue, caplog):
    def handle(message: Message) -> None:
        raise ValueError(f"secret {message.body}")

    queue.send("body")
    with Running(queue.worker(handle, retry=lambda receives: 0.0)):
        until(lambda: queue.metrics().dead == 1)
    (letter,) = queue.dead_letters.peek()
    assert (letter.receives, letter.last_error) == (5, "ValueError: secret body")
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_what_becomes_of_messages_is_heard(queue):
    """B4: events of queues: handled, failed, dead letters."""
    heard: list[Any] = []

    def handle(message: Message) -> None:
        if message.body == "bad":
            raise ValueError("secret")

    good, bad = queue.send("good").id, queue.send("bad").id
    with (
        events.listening(heard.append, written=False),
        Running(queue.worker(handle, retry=lambda receives: 0.0)),
    ):
        until(lambda: queue.metrics().dead == 1 and left(queue) == 0)

    assert [one for one in heard if one.message == good] == [events.Handled("work", good, 1)]
    of_bad = [(type(one).__name__, one.receives) for one in heard if one.message == bad]
    assert of_bad == [*(("HandlingFailed", n) for n in range(1, 6)), ("DeadLetter", 5)]
    assert "secret" not in f"{heard}{[one.as_dict() for one in heard]}"


@pytest.mark.full
def test_a_heartbeat_keeps_what_runs_and_what_waits_for_its_turn(queue, engine):
    """Longer than the visibility timeout, and nobody else gets anything."""
    seen: list[int] = []
    hidden: list[Any] = []
    go_on = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.receives)
        hidden.append(message.visible_at)
        assert go_on.wait(LIMIT)

    queue.send_many(range(3))
    with Running(queue.worker(handle)):
        until(lambda: hidden)
        until_past(engine, hidden[0])
        assert queue.receive(5) == []
        go_on.set()
        until(lambda: left(queue) == 0)
    assert seen == [1, 1, 1]


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_without_a_heartbeat_it_comes_back_while_the_handler_runs(queue):
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        assert go_on.wait(LIMIT)

    queue.send("a")
    short = Queue(queue.engine, "work", visibility=0.5)
    with short, Running(short.worker(handle, heartbeat=False)):
        assert begun.wait(LIMIT)
        (again,) = queue.receive(wait=LIMIT)
        assert again.receives == 2
        queue.delete(again)
        go_on.set()


def test_at_the_end_what_waits_for_its_turn_is_given_back_untouched(queue):
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        assert go_on.wait(LIMIT)

    queue.send_many(range(5))
    running = Running(queue.worker(handle))
    with running:
        assert begun.wait(LIMIT)
        running.worker.stop()
        until(lambda: queue.metrics().waiting == 4)
        go_on.set()
    assert sorted((m.body, m.receives) for m in queue.receive(10)) == [(n, 1) for n in range(1, 5)]
    assert left(queue) == 4


def test_a_handler_writes_in_the_transaction_that_deletes(queue, database):
    sessions = sessionmaker(queue.engine)
    effects = queue.tables.archive
    fails = [True]

    def handle(message: Message, session: Any) -> None:
        values = {"id": message.id, "archived_at": message.sent_at, "sent_at": message.sent_at}
        values |= {"tenant": "", "queue": "effect", "receives": 1, "body": "null"}
        session.execute(insert(effects).values(values))
        if fails:
            fails.pop()
            raise ValueError("after the write")

    queue.send_many(range(5))
    with Running(queue.worker(handle, sessions=sessions, retry=lambda receives: 0.0)):
        until(lambda: left(queue) == 0)
    assert queue.metrics().dead == 0  # none was handled again
    with queue.engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(effects)) == 5


@pytest.mark.full
def test_a_handler_that_does_not_return_is_given_up(queue):
    stuck = threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.receives)
        if message.receives == 1 and message.body == "stuck":
            stuck.wait(2 * LIMIT)

    queue.send_many(["stuck", "good"])
    worker = queue.worker(handle, timeout=2, retry=lambda receives: 0.0, grace=1)
    with Running(worker):
        until(lambda: left(queue) == 0)
    assert sorted(seen) == [1, 1, 2]
    stuck.set()


@pytest.mark.engines("postgresql")
def test_it_goes_on_when_its_connections_are_lost(queue, engine):
    seen: list[Any] = []
    with Running(queue.worker(lambda m: seen.append(m.body))):
        queue.send("before")
        until(lambda: "before" in seen)
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        until(lambda: _sent(queue))
        until(lambda: "after" in seen)


def _sent(queue: Queue) -> bool:
    try:
        queue.send("after")
    except Exception:
        return False
    return True


def program(url: str, said: int, go_on: int) -> None:
    """What a process does in the next test; it ends without pytest's own end."""

    def handle(message: Message) -> None:
        os.write(said, f"begun {message.body}\n".encode())
        os.read(go_on, 1)
        os.write(said, f"ended {message.body}\n".encode())

    Queue(create_engine(url), "work", visibility=0.9).worker(handle).run()
    os.write(said, b"stopped\n")
    os._exit(0)


@pytest.mark.engines("sqlite-wal", "postgresql")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended(queue, database, how):
    """SIGTERM: what runs is done, the rest is given back. SIGKILL: all of it comes back."""
    queue.send_many(range(3))
    (heard, said), (told, go_on) = os.pipe(), os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=program, args=(database.url, said, told)
    )
    process.start()
    os.close(said)
    with os.fdopen(heard) as lines, os.fdopen(go_on, "wb") as end, os.fdopen(told):
        assert lines.readline() == "begun 0\n"
        os.kill(process.pid, how)
        end.write(b"x")
        end.flush()
        rest = lines.read()
    process.join(LIMIT)
    if how is signal.SIGTERM:
        assert (rest, process.exitcode) == ("ended 0\nstopped\n", 0)
        assert [(m.body, m.receives) for m in queue.receive(5)] == [(1, 1), (2, 1)]
    else:
        assert "ended" not in rest
        found = queue.receive(5, wait=30)
        assert sorted((m.body, m.receives) for m in found) == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.engines("sqlite-wal")
def test_a_worker_that_cannot_be_is_refused(queue):
    for options in (
        {"concurrency": 0},
        {"batch": 2000},
        {"grace": -1},
        {"timeout": "x"},
        {"retry": 1},
    ):
        with pytest.raises(ConfigurationError):
            queue.worker(print, **options)
