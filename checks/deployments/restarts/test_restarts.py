"""Servers that end under writers and come back: nothing is lost, and nobody gives up too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from checks.deployments.messages import messages
from checks.deployments.postgresql import Node, primary, url_of
from checks.deployments.restarts.run import ASYNC, KINDS, run
from checks.deployments.writers import Account, make
from optilock import is_transient, retrying, unit_of_work
from tests.support.waiting import LIMIT, until


@pytest.mark.parametrize("kind", KINDS)
def test_restarts_lose_and_double_nothing_and_units_wait_for_the_server(kind):
    tally, verdict = run(kind, seconds=7, every=2, away=0.5)
    assert verdict.harm == 0, verdict
    assert verdict.early <= 0.01, (verdict, [error for error, _ in tally.refused.values()][:3])
    assert verdict.stored > 100
    assert verdict.retries > 0


# -- a server that answers, and lets nobody in -----------------------------------------------------


@pytest.fixture
def stopping():
    """A server that stops when the last of those ends who are connected: 57P03 to all others."""
    with primary() as node:
        engine = create_engine(node.url)
        make(engine)
        connection = engine.connect()
        node.close_to_newcomers()
        yield node, connection
        connection.close()
        engine.dispose()


def coming_back(node: Node, connection: Any, is_noticed: Callable[[], bool]) -> threading.Thread:
    """A thread that ends the server, and starts it again when a unit has noticed."""

    def run() -> None:
        connection.detach()
        connection.close()
        node.user.run("sh", "-c", f"while [ -e {node.data}/postmaster.pid ]; do sleep 0.02; done")
        until(is_noticed)
        node.start()

    return threading.Thread(target=run)


def number(node: Node) -> Any:
    engine = create_engine(node.url)
    with Session(engine) as session:
        found = session.scalar(select(Account.number).where(Account.id == 1))
    engine.dispose()
    return found


def test_a_unit_waits_for_a_server_that_is_shutting_down_to_be_back(stopping):
    node, connection = stopping
    engine = create_engine(node.url)
    errors: list[Any] = []
    away = coming_back(node, connection, lambda: "refused" in str(errors[-1]))

    def retried(event: Any) -> None:
        errors.append(event.error)
        if len(errors) == 3:
            away.start()

    @unit_of_work(
        engine, retry=retrying(attempts=1_000, deadline=LIMIT, wait_max=0.1, before_retry=retried)
    )
    def unit(session: Session) -> None:
        session.get_one(Account, 1).number += 1

    unit()
    away.join()
    engine.dispose()
    assert "the database system is shutting down" in str(errors[0])
    assert number(node) == 1


def test_asyncpg_waits_for_it_too(stopping):
    node, connection = stopping
    errors: list[Any] = []
    away = coming_back(node, connection, lambda: isinstance(errors[-1], OSError))

    def retried(event: Any) -> None:
        errors.append(event.error)
        if len(errors) == 3:
            away.start()

    async def story() -> None:
        engine = create_async_engine(url_of(node, driver="asyncpg"))

        @unit_of_work(
            engine,
            retry=retrying(attempts=1_000, deadline=LIMIT, wait_max=0.1, before_retry=retried),
        )
        async def unit(session: AsyncSession) -> None:
            (await session.get_one(Account, 1)).number += 1

        await unit()
        await engine.dispose()

    asyncio.run(story())
    away.join()
    assert "the database system is shutting down" in str(errors[0])
    assert number(node) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_goes_on_when_the_server_is_back_and_gets_every_message_once(kind):
    driver, running = KINDS[kind]
    with running() as server:
        url = make_url(server.url).set(drivername=driver)
        booked = messages(
            server.url,
            url.render_as_string(hide_password=False),
            {},
            60,
            is_async=kind in ASYNC,
            halfway=lambda: server.restart(1.0),
        )
    assert {*booked.values()} == {1}


def test_a_server_that_is_full_may_have_room_later():
    """53300 of the server itself, in words of its own."""
    with primary(max_connections="4", superuser_reserved_connections="1") as node:
        node.ask("CREATE ROLE ada LOGIN")
        engine = create_engine(node.url.replace("postgres@", "ada@"), pool_size=10)
        held = []
        with pytest.raises(OperationalError, match="slots are reserved") as caught:
            while True:
                held.append(engine.connect())
        for connection in held:
            connection.close()
        engine.dispose()
    assert is_transient(caught.value)
