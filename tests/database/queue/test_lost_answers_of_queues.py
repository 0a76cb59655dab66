"""A queue's own statements commit by themselves: what is told when their answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from optilock import is_transient, retry, retrying
from optilock.errors import CommitOutcomeUnknown
from optilock.queue import AsyncQueue, Draft, Queue
from tests.support.cut_line import Cut
from tests.support.cut_line import cut as cut
from tests.support.queues import make_tables

pytestmark = pytest.mark.engines("postgresql")


@pytest.fixture
def lossy(engine: Engine, cut: Cut) -> Iterator[Queue]:
    """A queue over a line that is cut when a certain text goes over it."""
    make_tables(engine)
    # Whatever is sent is named in the message that carries it.
    made = create_engine(cut.url, connect_args={"prepare_threshold": None})
    with Queue(made, "work") as queue:
        queue.metrics()
        yield queue
    made.dispose()


def waiting(engine: Engine) -> int:
    with Queue(engine, "work") as queue:
        found = queue.metrics()
        return found.waiting + found.hidden


SEND: dict[str, Callable[[Queue], object]] = {
    "one": lambda queue: queue.send({"pay": 100}),
    "many": lambda queue: queue.send_many([1, 2, 3]),
    "of a group": lambda queue: queue.send(1, group="a"),
    "some with a key": lambda queue: queue.send_many([1, Draft(2, dedup="b")]),
}


def again(call: Callable[[], Any]) -> Any:
    return retry(attempts=3, wait_initial=0)(lambda: call())()


def last_word(kind: str) -> bytes:
    """What a send ends with: its one statement, or COMMIT."""
    return b"COMMIT" if kind in ("of a group", "some with a key") else b"INSERT INTO"


@pytest.mark.parametrize("passes", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("kind", SEND)
def test_a_send_whose_answer_is_lost_is_not_run_again(engine, lossy, cut, kind, passes):
    """G2: it was stored twice."""
    cut.passes, cut.at = passes, last_word(kind)
    with pytest.raises(CommitOutcomeUnknown, match="dedup=") as caught:
        again(lambda: SEND[kind](lossy))
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert waiting(engine) == (passes * {"many": 3, "some with a key": 2}.get(kind, 1))


@pytest.mark.parametrize("kind", ["of a group", "some with a key"])
def test_a_send_that_was_lost_before_its_commit_is_run_again(engine, lossy, cut, kind):
    """G2: nothing of it can be stored."""
    cut.passes, cut.at = True, b"INSERT INTO"
    again(lambda: SEND[kind](lossy))
    assert waiting(engine) == (2 if kind == "some with a key" else 1)


@pytest.mark.parametrize("at", [b"INSERT INTO", b"COMMIT"])
@pytest.mark.parametrize("passes", [True, False], ids=["stored", "not stored"])
def test_a_send_with_a_key_of_its_own_can_be_run_again(engine, lossy, cut, at, passes):
    """G2: whatever was lost."""
    cut.passes, cut.at = passes, at
    sent = again(lambda: lossy.send("invoice 12", dedup="invoice 12"))
    assert waiting(engine) == 1
    assert sent.duplicate is (passes and at == b"COMMIT")
    cut.passes, cut.at = passes, at
    again(lambda: lossy.send_many([Draft("a", dedup="a"), Draft("b", dedup="b")]))
    assert waiting(engine) == 3


END: dict[str, Callable[[Queue, Any], object]] = {
    "delete": lambda queue, message: queue.delete(message),
    "update": lambda queue, message: queue.update(message, visibility=60),
    "fail": lambda queue, message: queue.fail(message, "text"),
}


@pytest.mark.parametrize("passes", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("kind", END)
def test_what_ends_a_message_is_not_told_as_missing_when_its_answer_is_lost(
    engine, lossy, cut, kind, passes
):
    """G2: run again, it would find that the message is not ours any more."""
    lossy.send(1)
    [message] = lossy.receive()
    cut.passes, cut.at = passes, b"DELETE FROM" if kind == "delete" else b"UPDATE "
    with pytest.raises(CommitOutcomeUnknown, match="comes again"):
        again(lambda: END[kind](lossy, message))
    assert waiting(engine) == (0 if kind == "delete" and passes else 1)


def test_a_connection_that_the_server_has_ended_is_not_asked(engine, lossy):
    """G2: nothing was sent on it, so nothing is unknown."""
    [kept] = lossy.connections._idle
    number = kept.connection.driver_connection.info.backend_pid
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({number}, 5000)")
    lossy.send(1)
    assert waiting(engine) == 1


def test_an_answer_of_the_database_is_certain(engine, lossy):
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE optilock_message ADD CHECK (body <> '5')")
    with pytest.raises(DBAPIError) as caught:
        lossy.send(5)
    assert not is_transient(caught.value)
    assert waiting(engine) == 0


@pytest.mark.anyio
async def test_an_async_send_whose_answer_is_lost_is_not_run_again(engine, cut):
    """G2."""
    make_tables(engine)

    made = create_async_engine(cut.url, connect_args={"prepare_threshold": None})
    async with AsyncQueue(made, "work") as queue:
        await queue.metrics()
        cut.passes, cut.at = True, b"INSERT INTO"
        with pytest.raises(CommitOutcomeUnknown):
            await retrying(attempts=3).acall(queue.send, 1)
        cut.passes, cut.at = True, b"COMMIT"
        assert (await queue.send(2, dedup="2")).duplicate
    await made.dispose()
    assert waiting(engine) == 2


# -- a queue that is left --------------------------------------------------------------------------


@pytest.mark.engines("postgresql", "mariadb")
def test_the_programs_own_error_leaves_a_queue_whose_connections_are_dead(database, engine):
    """G6: putting a connection's level back failed on MariaDB, and that was raised instead."""
    make_tables(engine)
    made = create_engine(database.url, pool_size=2, max_overflow=0, **database.options)
    queue = Queue(made, "work")
    queue.send(1)
    [kept] = queue.connections._idle
    postgresql = made.dialect.name == "postgresql"
    driver = kept.connection.driver_connection
    number = driver.info.backend_pid if postgresql else driver.thread_id()
    kill = f"SELECT pg_terminate_backend({number}, 5000)" if postgresql else f"KILL {number}"
    with pytest.raises(LookupError, match="mine"), queue:
        with engine.connect() as connection:
            connection.exec_driver_sql(kill)
        raise LookupError("mine")
    for _ in range(3):  # the pool has its places again
        with made.connect(), made.connect():
            pass
    made.dispose()
