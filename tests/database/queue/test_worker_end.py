"""What workers bear, and what they cost when there is nothing to do."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from sqlalchemy import event

from optilock.coroutines import run_to_end
from tests.database.queue.test_worker import Running, left, until
from tests.database.queue.test_worker import queue as queue
from tests.support.queues import lose_all_connections

pytestmark = [
    pytest.mark.engines("sqlite-wal", "postgresql", "mariadb"),
    pytest.mark.usually("postgresql"),
]


def test_an_idle_worker_asks_nothing_on_postgresql_and_elsewhere_once_a_second(queue):
    sent = []
    with Running(queue.worker(print)):
        time.sleep(1.4)  # elsewhere it asks more often at first
        event.listen(queue.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
        time.sleep(1.5)
        asked = len(sent)
    assert asked <= (0 if queue.engine.dialect.name == "postgresql" else 2), sent


def test_a_heartbeat_in_the_midst_of_the_end_hides_nothing(queue, monkeypatch):
    """It comes just after what waits for its turn was given back."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(message):
        begun.set()
        assert go_on.wait(10)

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
        assert begun.wait(10)
    assert [(message.body, message.receives) for message in at_once] == [(1, 1), (2, 1)]


def test_what_waits_for_its_turn_is_let_go_before_it_is_given_back(queue, monkeypatch):
    """Or a heartbeat in between would tell of messages that were lost, and hold on to them."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(message):
        begun.set()
        assert go_on.wait(10)

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
        assert begun.wait(10)
    assert held == [{0}]


def test_heartbeats_go_on_for_what_runs_at_the_end(queue):
    begun, go_on = threading.Event(), threading.Event()
    seen = []

    def handle(message):
        seen.append(message.receives)
        begun.set()
        go_on.wait(10)

    queue.send("a")
    running = Running(queue.worker(handle))
    with running:
        assert begun.wait(10)
        running.worker.stop()
        end = time.monotonic() + 1.3
        while time.monotonic() < end:  # longer than it is hidden for
            assert queue.receive() == []
            time.sleep(0.1)
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
        assert go_on.wait(10)
        done.append(message.body)

    queue.send_many(range(4))
    with Running(queue.worker(handle, concurrency=2, retry=lambda receives: 0.0)):
        assert begun.wait(10)
        lose_all_connections(database)
        go_on.set()
        until(lambda: set(done) == set(range(4)) and left_now(queue) == 0, 20)
    assert not any(receipt.partition(".")[2] in caplog.text for receipt in receipts)


def left_now(queue):
    try:
        return left(queue)
    except Exception:  # this connection was lost, too
        return None
