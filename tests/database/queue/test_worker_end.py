"""What workers bear, and what they cost when there is nothing to do."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import threading
from contextlib import closing

import pytest
from optilock_apps.servers import free_port
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError

from optilock._coroutines import run_to_end
from optilock.queue import Queue
from optilock.queue.worker_state import can_continue_after
from tests.database.queue.test_worker import Running, left
from tests.database.queue.test_worker import queue as queue
from tests.support.queues import Asked, lose_all_connections
from tests.support.waiting import LIMIT, until, until_past

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


@pytest.mark.full
def test_an_idle_worker_asks_nothing_on_postgresql_and_elsewhere_once_a_second(queue):
    asked = Asked(queue.engine)
    with Running(queue.worker(print)):
        until(asked.is_silent if queue.engine.dialect.name == "postgresql" else asked.is_seldom)


def test_a_heartbeat_in_the_midst_of_the_end_hides_nothing(queue, monkeypatch):
    """It comes just after what waits for its turn was given back."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(message):
        begun.set()
        assert go_on.wait(LIMIT)

    queue.send_many(range(3))
    running = Running(queue.worker(handle))
    give_back = queue.give_back
    at_once = []

    def given_back(messages):
        give_back(messages)
        run_to_end(running.worker._beat_once())
        at_once.extend(queue.receive(5))
        run_to_end(running.worker._beat_once())
        assert queue.beat(at_once) == {message.id for message in at_once}
        go_on.set()

    monkeypatch.setattr(queue, "give_back", given_back)
    with running:
        assert begun.wait(LIMIT)
    assert [(message.body, message.receives) for message in at_once] == [(1, 1), (2, 1)]


def test_what_waits_for_its_turn_is_let_go_before_it_is_given_back(queue, monkeypatch):
    """Or a heartbeat in between would tell of messages that were lost, and hold on to them."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(message):
        begun.set()
        assert go_on.wait(LIMIT)

    queue.send_many(range(3))
    running = Running(queue.worker(handle))
    give_back = queue.give_back
    held = []

    def given_back(messages):
        held.append({one.body for one in running.worker._held.messages.values()})
        give_back(messages)
        go_on.set()

    monkeypatch.setattr(queue, "give_back", given_back)
    with running:
        assert begun.wait(LIMIT)
    assert held == [{0}]


@pytest.mark.full
def test_heartbeats_go_on_for_what_runs_at_the_end(queue, engine):
    begun, go_on = threading.Event(), threading.Event()
    seen, hidden = [], []

    def handle(message):
        seen.append(message.receives)
        hidden.append(message.visible_at)
        begun.set()
        go_on.wait(LIMIT)

    queue.send("a")
    running = Running(queue.worker(handle))
    with running:
        assert begun.wait(LIMIT)
        running.worker.stop()
        until_past(engine, hidden[0])  # without a heartbeat
        assert queue.receive() == []
        go_on.set()
    assert (seen, left(queue)) == ([1], 0)


@pytest.mark.engines("postgresql", "mariadb")
def test_a_database_that_is_away_for_a_while_costs_no_message(queue, database, caplog):
    """Every connection is lost while handlers run; nothing is lost, and nobody has to look after
    the worker."""
    begun, go_on = threading.Event(), threading.Event()
    done, receipts = [], []
    caplog.set_level(logging.DEBUG, "optilock")

    def handle(message):
        receipts.append(message.receipt)
        begun.set()
        assert go_on.wait(LIMIT)
        done.append(message.body)

    queue.send_many(range(4))
    with Running(queue.worker(handle, concurrency=2, retry=lambda receives: 0.0)):
        assert begun.wait(LIMIT)
        lose_all_connections(database)
        go_on.set()
        until(lambda: set(done) == set(range(4)) and left_now(queue) == 0)
    assert not any(receipt.partition(".")[2] in caplog.text for receipt in receipts)


def left_now(queue):
    try:
        return left(queue)
    except Exception:  # this connection was lost, too
        return None


# -- what hinders the database for a while ---------------------------------------------------------


@pytest.mark.engines("postgresql", "mariadb")
def test_a_worker_waits_for_a_connection_of_the_pool(queue, database, caplog):
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    handled = []
    with closing(engine.connect()) as held, Queue(engine, "work") as ours:
        queue.send("a")
        with Running(ours.worker(lambda message: handled.append(message.body))):
            until(lambda: caplog.records)
            held.close()
            until(lambda: handled == ["a"])
    engine.dispose()


#: Of each server: a limit of time for statements, and what keeps them waiting.
SLOW = {
    "postgresql": (
        {"options": "-c statement_timeout=200"},
        "LOCK TABLE optilock_message IN ACCESS EXCLUSIVE MODE",
    ),
    "mariadb": (
        {"init_command": "SET max_statement_time=0.2"},
        "LOCK TABLES optilock_message WRITE",
    ),
}


@pytest.mark.engines("postgresql", "mariadb")
def test_a_worker_outlives_statements_that_the_server_interrupts(queue, database, caplog):
    limit, lock = SLOW[database.family]
    engine = database.engine(connect_args=limit)
    handled = []
    with (
        Queue(engine, "work") as ours,
        Running(ours.worker(lambda message: handled.append(message.body))) as running,
    ):
        with queue.engine.connect() as connection:
            connection.execute(text(lock))
            running.worker._waiter.wake()
            until(lambda: "does not answer" in caplog.text)
            connection.invalidate()
        queue.send("a")
        until(lambda: handled == ["a"])
    engine.dispose()


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("hindrance", ["query_only = 1", "max_page_count = 1"])
def test_a_full_or_read_only_database_ends_no_worker(queue, hindrance):
    with queue.engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA {hindrance}")
        with pytest.raises(OperationalError) as caught:
            Queue.send(queue, "x" * 100_000, session=connection)
        connection.invalidate()
    assert can_continue_after(caught.value)


@pytest.mark.engines("postgresql", "mariadb")
def test_a_worker_waits_for_its_server_and_logs_one_line_a_minute(database, monkeypatch, caplog):
    monkeypatch.setattr("optilock.queue.worker.AFTER_AN_ERROR", 0.02)
    engine = create_engine(make_url(database.url).set(host="127.0.0.1", port=free_port()))
    asked = []
    event.listen(engine, "do_connect", lambda *given: asked.append(given))
    with Queue(engine, "work") as ours, Running(ours.worker(print)):
        until(lambda: len(asked) > 3)
    assert caplog.text.count("does not answer") == 1
    engine.dispose()


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")
@pytest.mark.parametrize("listen", [True, False])
def test_a_worker_that_the_server_does_not_know_ends_at_its_start(database, listen):
    unknown = "/no_such/database" if database.family == "sqlite" else "no_such_database"
    engine = create_engine(make_url(database.url).set(database=unknown))
    with Queue(engine, "work", listen=listen) as ours:
        worker = ours.worker(print)
        to_end = threading.Timer(LIMIT, worker.stop)
        to_end.start()
        with pytest.raises(OperationalError):
            worker.run()
        to_end.cancel()
    engine.dispose()


# -- its process -----------------------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_a_worker_runs_in_a_process_with_many_open_files(queue):
    """``select()`` would refuse a file with a number above 1023."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        assert queue.receive(wait=0.05) == []
    finally:
        for one in files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def sleep_in_child(said) -> None:
    said.send("begun")
    signal.pause()


def end_child(child) -> None:
    """Python 3.13 does not notice a signal just before a sleep where a thread has forked."""
    for _ in range(100):
        child.terminate()
        child.join(0.1)
        if child.exitcode is not None:
            return
    child.kill()


@pytest.mark.engines("sqlite-wal")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_handler_can_terminate_a_process_that_it_forks(queue):
    """It is no worker, so the signal does there what it did before."""
    forking, ended = multiprocessing.get_context("fork"), []

    def handle(message):
        heard, said = forking.Pipe()
        child = forking.Process(target=sleep_in_child, args=(said,))
        child.start()
        heard.recv()
        end_child(child)
        ended.append(child.exitcode)
        worker.stop()

    worker = queue.worker(handle)
    queue.send("a")
    worker.run()
    assert ended in ([-signal.SIGTERM], [1])  # pytest has a handler of its own
