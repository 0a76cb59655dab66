"""What optilock sets, locks or prepares goes with its transaction.

So nothing of it is found by the next client of the pooler.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.pgbouncer.pooler import SETTINGS
from checks.deployments.writers import Account, Base
from optilock import Isolation, UnitOfWork, client_wins, leases, lock, shares, verify, watch
from optilock.check import check
from optilock.queue import AsyncQueue, Queue
from optilock.queue.async_queue import AsyncPollingWaiter
from optilock.queue.waiters import ListeningWaiter, PollingWaiter
from optilock.statements import no_bump
from optilock.tables.names import share_names
from optilock.tables.queue import message_tables
from tests.support.waiting import LIMIT

nothing_left = pytest.mark.usefixtures("nothing_left")


def test_what_is_left_is_seen(pooler):
    """The test of these tests."""
    before = pooler.states()
    for left in ("SET lock_timeout = '7s'", "LISTEN x", "SELECT pg_advisory_lock(7)"):
        with psycopg.connect(pooler.url().replace("+psycopg", "")) as client:
            client.execute(left)  # type: ignore[call-overload]
        assert pooler.states() != before, left
        before = pooler.states()
    for _ in range(10):  # on whichever connection
        with psycopg.connect(pooler.url().replace("+psycopg", "")) as client:
            client.execute("RESET lock_timeout")
            client.execute("UNLISTEN *")
            client.execute("SELECT pg_advisory_unlock_all()")


@nothing_left
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("level", [None, *Isolation])
def test_of_the_level_of_a_unit(engine, level, read_only):
    for outcome in (None, KeyError):
        try:
            with UnitOfWork(engine, isolation=level, read_only=read_only) as session:
                account = session.get_one(Account, 1)
                if not read_only:
                    account.number += 1
                if outcome:
                    raise outcome
        except KeyError:
            pass
    with UnitOfWork(engine) as session:
        assert session.connection().get_isolation_level() == "READ COMMITTED"
        session.get_one(Account, 1).number += 1
    with Session(engine) as session:
        assert session.get_one(Account, 1).number == (1 if read_only else 2)


@nothing_left
def test_of_promises_savepoints_and_conflicts(engine):
    with UnitOfWork(engine, verify_reads=True) as session:
        session.get_one(Account, 2)
        verify(session.get_one(Account, 3))
        with session.begin_nested():
            session.get_one(Account, 1).number += 1
    with UnitOfWork(engine, on_conflict=client_wins) as session:
        account = session.get_one(Account, 1)
        with Session(engine) as other, other.begin():
            other.get_one(Account, 1).number = 50
        account.number = 7
    with Session(engine) as session:
        assert session.get_one(Account, 1).number == 7


@nothing_left
def test_of_a_wait_for_a_lock(engine):
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        assert lock(session.get_one(Account, 1), timeout=0.3)
        with sessions() as other, pytest.raises(DBAPIError):
            lock(other.get_one(Account, 1), timeout=0.05)


@nothing_left
def test_of_writes_that_move_no_version(engine):
    with watch(sessionmaker(engine)).begin() as session, no_bump(session):
        session.get_one(Account, 1).number = 5


@nothing_left
def test_of_a_lease_that_is_renewed(engine):
    with leases.lease(engine, leases.Name("nightly"), duration=15) as held:
        assert held.renew_once(engine) > 0
        with UnitOfWork(engine, parts=[held]) as session:
            session.get_one(Account, 1).number = 5
    with Session(engine) as session:
        assert leases.look(session, leases.Name("nightly")).state == "available"


@nothing_left
def test_of_share_modes(engine):
    share_names.metadata.create_all(engine)
    with shares.opened(watch(sessionmaker(engine)), "report", "RW", share="R", seconds=15) as held:
        held.check()


@nothing_left
def test_of_a_check(engine):
    assert {finding.code for finding in check(Base, engine)} <= {"no-version"}


# -- messages --------------------------------------------------------------------------------------


@pytest.fixture
def queue(pooler, engine):
    metadata = message_tables().messages.metadata
    metadata.drop_all(engine)
    metadata.create_all(engine)
    with Queue(engine, "mails") as queue:
        yield queue


@nothing_left
def test_whoever_waits_for_messages_asks(queue, engine):
    """LISTEN would be lost, or be heard by another client."""
    waiter = queue.waiter()
    assert isinstance(waiter, PollingWaiter)
    waiter.close()
    threading.Timer(0.3, queue.send, ["hello"]).start()
    [message] = queue.receive(wait=10 * LIMIT)
    queue.delete(message)


@nothing_left
def test_a_sender_behind_the_pooler_tells_those_who_listen_beside_it(queue, pooler):
    direct = create_engine(pooler.server.url)
    with Queue(direct, "mails") as beside:
        waiter = beside.waiter()
        assert isinstance(waiter, ListeningWaiter)
        waiter.close()
        threading.Timer(0.5, queue.send, ["hello"]).start()
        [message] = beside.receive(wait=10 * LIMIT)
        beside.delete(message)
    direct.dispose()


@nothing_left
@pytest.mark.parametrize("driver", SETTINGS)
def test_async_ones_ask_too(queue, pooler, driver):
    async def story() -> None:
        engine = create_async_engine(pooler.url(driver), **SETTINGS[driver])
        async with AsyncQueue(engine, "mails") as mails:
            waiter = await mails.waiter()
            assert isinstance(waiter, AsyncPollingWaiter)
            await waiter.close()
            await mails.send("hello")
            [message] = await mails.receive(wait=LIMIT)
            await mails.delete(message)
        await engine.dispose()

    asyncio.run(story())


# -- what the check says of the settings -----------------------------------------------------------


def codes(engine: Any) -> set[str]:
    return {finding.code for finding in check(Base, engine)} - {"no-version"}


@pytest.mark.parametrize("driver", SETTINGS)
def test_the_check_asks_for_the_settings_and_is_content_with_them(engine, pooler, driver):
    assert codes(create_async_engine(pooler.url(driver))) == {"pooled-prepared"}
    assert codes(create_async_engine(pooler.url(driver), **SETTINGS[driver])) == set()
    assert codes(create_async_engine(pooler.server.url.replace("psycopg", driver))) == set()


def test_what_another_client_has_prepared_is_not_ours(engine, pooler):
    """A program without the settings leaves its statements on the connection."""

    async def prepare() -> None:
        other = create_async_engine(pooler.url("asyncpg"))
        async with other.connect() as connection:
            await connection.execute(select(Account))
        await other.dispose()

    asyncio.run(prepare())
    assert codes(create_async_engine(pooler.url("asyncpg"), **SETTINGS["asyncpg"])) == set()
