"""On PostgreSQL a receive looks above what the one before has found, and yet nothing is missed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from optilock.dialects.postgresql import queue_sql
from optilock.queue import Queue
from tests.support.queues import bodies, make_tables

pytestmark = pytest.mark.engines("postgresql")


@pytest.fixture
def queue(engine):
    make_tables(engine)
    with Queue(engine, "work") as queue:
        yield queue


@pytest.fixture
def clock(monkeypatch):
    """Seconds of this process, which a test moves."""
    now = [1000.0]
    monkeypatch.setattr(queue_sql.time, "monotonic", lambda: now[0])
    return now


def test_it_begins_at_the_last_one_that_was_received(queue, engine):
    looks = []
    event.listen(engine, "before_cursor_execute", lambda *given: looks.append(given[3]))
    queue.send("one")
    queue.send("two")
    (one,) = queue.receive()
    queue.receive(done=[one])
    first, last = ((given["low"], given["low_id"]) for given in looks if "low" in given)
    assert first == queue_sql.BEGINNING
    assert last[1] == one.id
    assert abs(one.sent_at.replace(tzinfo=None) - last[0]) < timedelta(seconds=1)


@pytest.mark.parametrize("along", [False, True], ids=["alone", "with an acknowledgement"])
def test_one_that_was_committed_late_is_found_when_no_other_is_left(queue, engine, clock, along):
    with Session(engine) as session:
        queue.send("late", session=session)
        queue.send("a")
        queue.send("b")
        done = queue.receive()
        session.commit()
    found = []
    while done:
        found += bodies(done)
        done = queue.receive(done=done if along else ())
    assert found == ["a", "b", "late"]


def test_it_is_found_within_a_second_when_there_are_always_others(queue, engine, clock):
    with Session(engine) as session:
        queue.send("late", session=session)
        for body in "abcd":
            queue.send(body)
        assert bodies(queue.receive()) == ["a"]
        session.commit()
    assert bodies(queue.receive()) == ["b"]
    clock[0] += 1.1
    assert bodies(queue.receive()) == ["late"]
    assert bodies(queue.receive(5)) == ["c", "d"]


def test_messages_sent_at_the_same_moment_come_in_their_order(queue, clock):
    queue.send_many(range(20))
    assert [body for _ in range(5) for body in bodies(queue.receive(4))] == list(range(20))
