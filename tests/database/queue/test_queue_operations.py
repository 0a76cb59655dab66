"""What a queue does with one message after the other."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from optilock import ConfigurationError, WouldOverwrite
from optilock.queue import (
    Draft,
    MessageNotFound,
    MessageTooLarge,
    Queue,
    ReceiptExpired,
    message_operations,
    whole_queue,
)
from optilock.testing import count_statements
from tests.support.queues import CLOCK, bodies, made, make_tables, shift
from tests.support.queues import queue as queue
from tests.support.waiting import LIMIT, until

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


def test_messages_come_in_the_order_in_which_they_were_sent_with_all_that_was_sent(queue):
    body = {"text": "Zoë \0 ☃", "numbers": [1, 2.5, None, True], "nested": {"": []}}
    queue.send(body, headers={"trace": "1"})
    queue.send_many([2, Draft(3, delay=5), None, "four"])
    found = queue.receive(10)
    assert bodies(found) == [body, 2, None, "four"]
    assert found[0].headers == {"trace": "1"}
    assert all(message.sent_at.tzinfo is not None for message in found)


def test_time_passes_by_the_clock_of_the_server(engine):
    """The only one that waits: nothing is moved here."""
    make_tables(engine)
    queue = Queue(engine, "real")
    queue.send("delayed for long", delay=600)
    queue.send("over", ttl=0.001)
    queue.send("now", ttl=600)
    until(lambda: queue.metrics().waiting == 1)
    assert bodies(queue.receive(5, visibility=0.1)) == ["now"]
    assert bodies(queue.receive(5, wait=LIMIT)) == ["now"]
    queue.send("delayed", delay=0.1)
    assert bodies(queue.receive(5, wait=LIMIT)) == ["delayed"]
    queue.close()


def test_what_was_received_in_one_go_can_be_done_while_the_next_are_received(queue):
    queue.send_many(range(5))
    first = queue.receive(2)
    second = queue.receive(2, done=first)
    assert (bodies(second), second.expired) == ([2, 3], ())
    assert queue.metrics().waiting + queue.metrics().hidden == 3


def test_the_done_and_the_next_take_one_statement_on_postgresql(queue, engine):
    queue.send_many(range(6))
    done = queue.receive(2)  # the groups were looked at
    with count_statements(engine) as alone:
        more = queue.receive(2)
    with count_statements(engine) as both:
        queue.receive(2, done=[*done, *more][:2])
    assert both.count - alone.count == (0 if engine.dialect.name == "postgresql" else 1)


def test_done_tells_what_somebody_else_has_by_now(queue, engine):
    queue.send_many(range(3))
    mine = queue.receive(2, visibility=1)
    shift(engine, 2)
    theirs = queue.receive(3)
    assert len(theirs) == 3
    after = queue.receive(1, done=mine)
    assert (after, set(after.expired)) == ([], {message.id for message in mine})
    queue.delete(*theirs)


def test_several_are_deleted_and_the_one_that_is_somebody_elses_is_told(queue, engine):
    queue.send_many(range(2))
    lost = queue.receive(visibility=1)[0]
    kept = queue.receive(visibility=60)[0]
    shift(engine, 2)
    queue.receive()
    with pytest.raises(ReceiptExpired) as caught:
        queue.delete(lost, kept)
    assert caught.value.ids == (lost.id,)
    with pytest.raises(MessageNotFound):
        queue.delete(kept)


def test_a_queue_sees_neither_other_queues_nor_other_tenants(queue, engine):
    queue.send("mine")
    message = queue.receive()[0]
    for other in (
        Queue(engine, "other", clock=CLOCK),
        Queue(engine, "work", tenant="b", clock=CLOCK),
    ):
        assert other.receive() == []
        assert other.peek() == []
        assert other.metrics(exact=True).hidden == 0
        for call in (other.delete, lambda m, o=other: o.update(m, visibility=1), other.archive):
            with pytest.raises(MessageNotFound):
                call(message)
        with pytest.raises(MessageNotFound):
            other.fail(message, "no")
        assert other.purge() == 0
        other.close()
    queue.delete(message)


def test_the_tables_may_have_other_names(engine):
    make_tables(engine, table="jobs")
    queue = Queue(engine, "q", table="jobs")
    queue.send(1)
    queue.archive(*queue.receive())
    with engine.connect() as connection:
        archived = select(func.count()).select_from(queue.tables.archive)
        assert connection.scalar(archived) == 1
    assert queue.tables.archive.name == "jobs_archive"
    queue.close()


def test_a_message_of_the_callers_transaction_is_sent_when_it_commits(queue, engine):
    with Session(engine) as session:
        queue.send("never", session=session)
        session.rollback()
        queue.send("sent", session=session)
        queue.send("with a key", session=session, dedup="k")
        if engine.dialect.name != "sqlite":  # one writer, and here that is the session
            assert queue.receive() == []
        session.commit()
    assert bodies(queue.receive(5)) == ["sent", "with a key"]


def test_effects_are_written_exactly_once_with_the_delete(queue, engine):
    """Who comes too late writes nothing: the delete fails, and with it the transaction."""
    effects = queue.tables.archive  # any other table
    queue.send("pay")
    late = queue.receive(visibility=1)[0]
    shift(engine, 2)
    current = queue.receive()[0]

    def handle(message):
        with Session(engine) as session, session.begin():
            queue.archive(message, session=session)

    with pytest.raises(ReceiptExpired):
        handle(late)
    handle(current)
    with pytest.raises(MessageNotFound):
        handle(current)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(effects)) == 1


def test_after_n_deliveries_a_message_is_a_dead_letter_with_its_last_error(queue, engine):
    queue.send({"n": 1}, dedup="k", headers={"a": "b"})
    for attempt in range(1, 6):
        (message,) = queue.receive()
        assert message.receives == attempt
        assert queue.fail(message, ValueError(f"attempt {attempt}")) is (attempt == 5)
    assert queue.receive() == []
    dead = queue.dead_letters
    (letter,) = dead.peek()
    assert letter.last_error == "ValueError: attempt 5"
    assert letter.headers == {"a": "b", "optilock-dedup": "k"}
    assert letter.id == message.id
    assert not queue.send("again", dedup="k").duplicate
    assert queue.redrive(10) == 1
    assert [one.receives for one in queue.receive(5) if one.id == letter.id] == [1]


def test_one_whose_handling_would_overwrite_is_a_dead_letter_at_once(queue):
    """A1: handled anew, it would put its value over an edit that its sender has not seen."""
    queue.send("typed")
    (message,) = queue.receive()
    assert queue.fail(message, WouldOverwrite())
    assert queue.receive() == []
    (letter,) = queue.dead_letters.peek()
    assert letter.receives == 1
    assert letter.last_error is not None
    assert letter.last_error.startswith("WouldOverwrite: ")


def test_one_that_kills_its_workers_is_a_dead_letter_too(engine):
    queue = made(engine, max_receives=2)
    queue.send("poison")
    for _ in range(2):
        assert queue.receive(visibility=1)
        shift(engine, 2)
    queue.send("good")
    assert bodies(queue.receive(2)) == ["good"]
    assert queue.metrics().dead == 1
    assert "neither deleted nor failed" in queue.dead_letters.peek()[0].last_error
    queue.close()


def test_what_has_expired_is_not_handed_out_and_does_not_stay(queue, engine):
    queue.send_many([Draft(n, ttl=1) for n in range(4)])
    queue.send("stays")
    shift(engine, 2)
    assert bodies(queue.receive(2)) == ["stays"]
    queue.send_many([Draft(n, ttl=1) for n in range(4)])
    shift(engine, 2)
    assert queue.metrics(exact=True).waiting == 0
    assert queue.purge(expired=True) == 4
    assert queue.purge() == 1


def test_a_purge_goes_on_behind_what_it_has_deleted(queue, engine, monkeypatch):
    monkeypatch.setattr(whole_queue, "_CHUNK", 3)
    other = Queue(engine, "other")
    for number in range(4):
        queue.send_many([number, Draft("grouped", group="g")])
        other.send(number)
    queue.send_many([Draft("short", ttl=1)] * 4)
    shift(engine, 2)
    held = queue.receive(2)
    assert queue.purge(expired=True) == 4
    assert queue.purge() == 8
    assert queue.purge() == 0
    with pytest.raises(MessageNotFound):
        queue.delete(*held)
    assert other.metrics().waiting == 4
    other.close()


def test_metrics(queue, engine):
    queue.send_many([1, 2, Draft(3, delay=60)])
    shift(engine, 10)
    queue.receive()
    found = queue.metrics()
    assert (found.waiting, found.hidden, found.dead, found.exact) == (1, 2, 0, True)
    assert found.oldest == pytest.approx(10, abs=2)


def test_pop_deletes_at_once(queue):
    queue.send_many(range(3))
    assert bodies(queue.pop(2)) == [0, 1]
    assert queue.metrics().hidden == 0


def test_an_update_keeps_the_count_and_a_give_back_comes_at_once(queue):
    queue.send("one")
    (first,) = queue.receive()
    changed = queue.update(first, visibility=0, body="two")
    assert changed.body == "two"
    (second,) = queue.receive()
    assert (second.body, second.receives) == ("two", 2)


# -- deduplication ---------------------------------------------------------------------------------


def test_there_is_one_message_with_a_key_through_retries_and_a_while_after(queue, engine):
    sent = queue.send("first", dedup="k")
    again = queue.send("second", dedup="k")
    assert (again.id, again.duplicate, again.receipt) == (sent.id, True, None)
    queue.fail(queue.receive()[0], "no")
    assert queue.send("third", dedup="k").duplicate
    queue.delete(*queue.receive())
    assert queue.send("fourth", dedup="k").duplicate
    assert queue.receive() == []
    assert (queue.metrics(exact=True).waiting, queue.peek()) == (0, [])
    with pytest.raises(MessageNotFound):
        queue.delete(sent)
    shift(engine, 301)
    assert not queue.send("fifth", dedup="k").duplicate
    assert bodies(queue.receive()) == ["fifth"]


def test_keys_are_compared_byte_by_byte(queue):
    for key in ("a", "A", "a ", "ä"):
        assert not queue.send(key, dedup=key).duplicate


# -- groups ----------------------------------------------------------------------------------------


def test_a_group_is_handed_out_in_order_one_at_a_time(queue):
    for group in "ab":
        queue.send_many([Draft(f"{group}{n}", group=group) for n in range(3)])
    queue.send("alone")
    first = queue.receive(10)
    assert sorted(bodies(first)) == ["a0", "alone", "b0"]
    assert queue.receive(10) == []
    by_body = {message.body: message for message in first}
    queue.delete(by_body["a0"])
    (next_one,) = queue.receive(10)
    assert next_one.body == "a1"
    queue.fail(next_one, "not yet", delay=10)
    assert queue.receive(10) == []
    queue.delete(by_body["b0"])
    assert bodies(queue.receive(10)) == ["b1"]


def test_who_has_lost_a_message_of_a_group_can_neither_hold_nor_free_the_group(queue, engine):
    queue.send_many([Draft(n, group="g") for n in range(3)])
    (late,) = queue.receive(visibility=1)
    shift(engine, 2)
    (current,) = queue.receive(visibility=60)
    assert current.id == late.id
    for call in (
        lambda: queue.update(late, visibility=0),
        lambda: queue.delete(late),
        lambda: queue.fail(late, "late"),
    ):
        with pytest.raises(ReceiptExpired):
            call()
        assert queue.receive(10) == []
    queue.delete(current)
    assert bodies(queue.receive(10)) == [1]


def test_groups_are_not_starved_by_the_others(queue):
    queue.send("grouped", group="g")
    queue.send_many(range(50))
    found = [body for _ in range(10) for body in bodies(queue.receive(1))]
    assert "grouped" in found


def test_after_one_of_a_group_the_next_receive_looks_at_the_groups_first(queue, monkeypatch):
    """Here the time after which each receive does so never comes."""
    monkeypatch.setattr(message_operations.time, "monotonic", lambda: 0.0)
    queue.send_many([Draft(f"g{n}", group="g") for n in range(2)])
    queue.delete(*queue.receive())
    queue.send("other")
    assert bodies(queue.receive()) == ["g1"]


def test_an_empty_group_leaves_nothing_behind(queue, engine):
    queue.send("one", group="g")
    queue.delete(*queue.receive())
    assert queue.receive() == []
    with engine.connect() as connection:
        groups = select(func.count()).select_from(queue.tables.groups)
        assert connection.scalar(groups) == 0
    queue.send("two", group="g")
    assert bodies(queue.receive()) == ["two"]


@pytest.mark.needs("row-locks")
def test_a_sender_that_has_not_committed_keeps_the_group_and_stops_nobody_else(queue, engine):
    queue.send("one", group="g")
    queue.send("other", group="h")
    with Session(engine) as session:
        queue.send("two", group="g", session=session)
        found = queue.receive(10)
        assert "other" in bodies(found)
        queue.delete(*found)
        queue.receive(10)
        session.commit()
    for _ in range(2):
        shift(engine, 2)
        found = queue.receive(10)
        queue.delete(*found)
        if "two" in bodies(found):
            return
    pytest.fail("the message is never received")


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal")
def test_what_cannot_be_sent_is_refused(queue):
    for options in (
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": "1"},
        {"delay": 604801},
        {"ttl": 0},
        {"ttl": -1},
        {"delay": 10, "ttl": 10},
        {"group": ""},
        {"group": "x" * 201},
        {"dedup": "a\0b"},
        {"dedup": "\ud800"},
        {"headers": ["a"]},
        {"headers": {1: "a"}},
    ):
        with pytest.raises(ConfigurationError):
            queue.send("x", **options)
    assert queue.peek() == []


@pytest.mark.engines("sqlite-wal")
def test_a_body_is_json_and_is_not_repeated_in_the_error(queue):
    circular = []
    circular.append(circular)
    for body in (object(), {1, 2}, float("nan"), b"bytes", Draft, circular):
        with pytest.raises(ConfigurationError) as caught:
            queue.send({"secret": body})
        assert "secret" not in str(caught.value)


@pytest.mark.engines("sqlite-wal")
def test_an_enormous_body_is_refused(engine):
    queue = made(engine, max_bytes=100)
    with pytest.raises(MessageTooLarge) as caught:
        queue.send("secret" * 50)
    assert "secret" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).status == 413


@pytest.mark.engines("sqlite-wal")
def test_a_queue_that_cannot_be_is_refused(engine):
    for options in (
        {"name": ""},
        {"tenant": None},
        {"visibility": 0},
        {"visibility": 604801},
        {"ttl": 0},
        {"max_receives": 0},
        {"max_bytes": -1},
        {"table": ""},
        {"dedup_window": -1},
    ):
        with pytest.raises(ConfigurationError):
            Queue(engine, **{"name": "q", **options})


def test_no_receipt_but_the_last_one_is_good(queue):
    queue.send_many(["a", "b"])
    one, other = queue.receive(2)
    for receipt in (
        other.receipt,
        f"{one.id}.{'0' * 32}",
        f"{one.id}.b75bd0d0a0a6de992c84117e0341971e",  # no UUID for MariaDB
        f"{one.id}.{other.receipt.partition('.')[2][::-1]}",
        "bogus",
        "",
        "1" * 1000,
        f"{one.id}.' OR 1=1 --",
        17,
    ):
        wrong = replace(one, receipt=receipt)
        for call in (
            queue.delete,
            queue.archive,
            lambda m: queue.update(m, visibility=1),
            lambda m: queue.fail(m, "no"),
        ):
            with pytest.raises(ReceiptExpired):
                call(wrong)
    queue.delete(one, other)


@pytest.mark.engines("sqlite-wal")
def test_what_is_no_message_is_refused(queue):
    queue.send("a")
    (seen,) = queue.peek()
    for wrong in (None, 1, "1.0", seen, {"id": 1}):
        for call in (queue.delete, lambda m: queue.update(m, visibility=1)):
            with pytest.raises(ConfigurationError):
                call(wrong)
    for n in (0, -1, 1001, True, "1", None):
        with pytest.raises(ConfigurationError):
            queue.receive(n)


@pytest.mark.engines("sqlite-wal")
def test_receipts_and_bodies_are_in_no_text(queue, caplog, engine):
    caplog.set_level(logging.DEBUG, "optilock")
    sent = queue.send("secret-body", headers={"h": "secret-header"})
    (message,) = queue.receive()
    queue.fail(message, "secret-error")
    (again,) = queue.receive()
    texts = [repr(one) for one in (sent, message, again, queue, queue.metrics(), Draft("secret"))]
    with pytest.raises(ReceiptExpired) as caught:
        queue.delete(message)
    texts += [str(caught.value), repr(caught.value), caplog.text]
    for text in texts:
        assert "secret" not in text
        assert message.receipt not in text
        assert message.receipt.partition(".")[2] not in text
    assert pickle.loads(pickle.dumps(caught.value)).ids == (message.id,)
