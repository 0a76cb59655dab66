"""What keeps two from having the same message, and a stranger from touching one: each by itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from optilock.queue import Draft, MessageNotFound, Queue, ReceiptExpired
from tests.support.queues import CLOCK, bodies, made, shift
from tests.support.queues import queue as queue

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def soon(call):
    """What it gives; it must not wait for anybody."""
    given = []
    thread = threading.Thread(target=lambda: given.append(call()), daemon=True)
    thread.start()
    thread.join(5)
    assert given, "it waits, or it has failed"
    return given[0]


@pytest.mark.needs("row-locks")
def test_who_receives_leaves_out_what_another_one_is_just_receiving(queue, engine):
    """The other one has written its rows, and has not committed yet."""
    queue.send_many(range(4))
    store = queue._operations.store
    with engine.connect() as connection:
        store.prepare(connection)
        connection.commit()
        with connection.begin():
            first = queue._operations.receive(connection, 2, 30_000)
            second = soon(lambda: queue.receive(4))
            assert (bodies(first), bodies(second)) == ([0, 1], [2, 3])
    assert queue.receive(4) == []
    queue.delete(*first, *second)


@pytest.mark.needs("row-locks")
@pytest.mark.engines("mariadb")
def test_what_was_found_is_locked_until_it_is_written(queue, engine):
    """MariaDB finds the rows in one statement, and writes them in the next."""
    queue.send_many(range(3))
    store = queue._operations.store
    with engine.connect() as connection:
        store.prepare(connection)
        connection.commit()
        with connection.begin():
            assert len(list(connection.scalars(store._claim, {"n": 2}))) == 2
            assert bodies(soon(lambda: queue.receive(3))) == [2]


@pytest.mark.needs("row-locks")
def test_a_heartbeat_does_not_wait_for_who_is_deleting(queue, engine):
    queue.send_many(range(2))
    one, other = queue.receive(2)
    with Session(engine) as session:
        queue.delete(one, session=session)
        assert soon(lambda: queue.beat([one, other])) == {one.id, other.id}
        session.commit()
    assert queue.beat([one, other]) == {other.id}


def test_a_heartbeat_after_a_give_back_hides_nothing(queue):
    queue.send("a")
    queue.send("b", group="g")
    held = queue.receive(2)
    queue.give_back(held)
    assert queue.beat(held) == set()
    again = queue.receive(2)
    assert sorted((m.body, m.receives) for m in again) == [("a", 1), ("b", 1)]
    assert queue.beat(held) == set()


@pytest.mark.parametrize("group", [None, "g"])
def test_no_receipt_outlives_what_ends_its_delivery(queue, engine, group):
    """Given back, failed, changed, or received again: the receipt before is good for nothing."""
    ends = [
        lambda message: queue.give_back([message]),
        lambda message: queue.fail(message, "no"),
        lambda message: queue.update(message, visibility=0),
        lambda message: shift(engine, 60) or (queue.receive(visibility=1) and shift(engine, 2)),
    ]
    for number, end in enumerate(ends):
        queue.send(number, group=group)
        (old,) = queue.receive()
        end(old)
        _is_good_for_nothing(queue, old)
        (new,) = queue.receive()
        assert new.id == old.id
        _is_good_for_nothing(queue, old)
        assert queue.receive(done=[old]) == []
        queue.delete(new)


def _is_good_for_nothing(queue, old):
    for call in (
        queue.delete,
        queue.archive,
        lambda m: queue.update(m, visibility=5),
        lambda m: queue.fail(m, "late"),
    ):
        with pytest.raises(ReceiptExpired):
            call(old)
    assert queue.beat([old]) == set()
    queue.give_back([old])


def test_who_has_lost_a_message_cannot_hold_a_group_that_is_at_another_one(engine):
    """An earlier message has come back into the group meanwhile."""
    queue = made(engine, max_receives=1)
    queue.send_many([Draft(n, group="g") for n in range(2)])
    (first,) = queue.receive()
    assert queue.fail(first, "no")
    (late,) = queue.receive(visibility=1)
    assert queue.redrive() == 1
    shift(engine, 2)
    (current,) = queue.receive(visibility=60)
    assert (late.body, current.body) == (1, 0)
    with pytest.raises(ReceiptExpired):
        queue.update(late, visibility=300)
    queue.delete(late)  # what is done is done
    assert queue.receive(5) == []
    queue.update(current, visibility=0)
    queue.close()


def test_a_group_that_gets_a_message_while_it_is_removed_stays(queue, engine):
    queue.send("one", group="g")
    queue.delete(*queue.receive())
    store = queue._operations.store

    def remove(connection):
        with store.atomic(connection):
            rows, empty = store.claim_groups(connection, 5, 1_000, uuid4())
        assert (rows, empty) == ([], ["g"])
        queue.send("two", group="g")
        with store.atomic(connection):
            store.remove_groups(connection, empty)

    queue.connections.run(remove)
    shift(engine, 2)
    assert bodies(queue.receive(5)) == ["two"]


def test_what_has_expired_is_neither_deleted_nor_changed(queue, engine):
    """Its time to live has ended while somebody had it."""
    queue.send("a", ttl=10)
    (message,) = queue.receive(visibility=60)
    shift(engine, 11)
    for call in (queue.delete, queue.archive, lambda m: queue.update(m, visibility=1)):
        with pytest.raises(MessageNotFound):
            call(message)


def test_a_forged_receipt_among_those_that_are_done_deletes_nothing(queue):
    """The receipt of one that was received together with it, under the number of another."""
    queue.send_many(range(3))
    mine, other = queue.receive(2)
    (third,) = queue.receive()
    for forged in (
        replace(other, receipt=mine.receipt),
        replace(third, receipt=f"{third.id}.{mine.receipt.partition('.')[2]}"),
        replace(third, receipt="0" * 40),
    ):
        after = queue.receive(done=[forged])
        assert (after, after.expired) == ([], (forged.id,))
    assert queue.receive(done=[mine, replace(other, receipt=mine.receipt)]).expired == (other.id,)
    queue.delete(other, third)


def test_a_tenant_that_guesses_numbers_and_receipts_reaches_nothing(queue, engine):
    queue.send("mine")
    queue.send("grouped", group="g")
    held = queue.receive(2)
    before = [queue.metrics(exact=True), queue.peek(5)]
    for other in (
        Queue(engine, "work", tenant="b", clock=CLOCK),
        Queue(engine, "other", clock=CLOCK),
    ):
        assert other.beat(held) == set()
        other.give_back(held)
        assert other.receive(done=held).expired == ()
        assert [other.redrive(5), other.purge(), other.purge(expired=True)] == [0, 0, 0]
        assert other.pop(5) == []
        other.close()
    assert [queue.metrics(exact=True), queue.peek(5)] == before
    assert queue.beat(held) == {message.id for message in held}
    queue.delete(*held)


def test_a_clock_that_jumps_loses_nothing(queue, engine):
    """Forwards, what is held comes back; backwards, what was sent waits until its time."""
    queue.send("before")
    (held,) = queue.receive(visibility=30)
    shift(engine, 3600)
    (again,) = queue.receive()
    assert (again.id, again.receives) == (held.id, 2)
    with pytest.raises(ReceiptExpired):
        queue.delete(held)
    queue.delete(again)
    queue.send_many([1, 2, Draft(3, group="g")])
    (one,) = queue.receive()
    shift(engine, -3600)
    queue.send("after")
    (after,) = queue.receive(5)
    assert after.body == "after"
    queue.delete(one, after)
    shift(engine, 3601)
    assert sorted(map(str, bodies(queue.receive(5)))) == ["2", "3"]


def test_the_longest_body_there_is(engine):
    queue = made(engine, max_bytes=3_000_000)
    body = "é\n\\" * 200_000 + "☃"
    queue.send_many([body, {"a": [body]}])
    assert bodies(queue.receive(2)) == [body, {"a": [body]}]
    queue.close()


def test_lines_in_bodies_and_headers_stay_what_they_are(queue):
    texts = ["a\nb", "\n", "", "\\n", "'; --", "%s %(x)s :y $1", "\u2028\r\t\x00"]
    queue.send_many(texts)
    queue.send_many([Draft(text, headers={"h": text}) for text in texts])
    assert bodies(queue.receive(len(texts))) == texts
    found = queue.receive(len(texts))
    assert [(m.body, m.headers["h"]) for m in found] == [(text, text) for text in texts]


def test_a_body_that_another_program_has_written_may_have_white_space(queue, engine):
    sent = queue.send(1)
    with engine.begin() as connection:
        m = queue.tables.messages
        connection.execute(update(m).where(m.c.id == sent.id).values(body=' {"a": [1, 2]}\n'))
    assert bodies(queue.receive()) == [{"a": [1, 2]}]
