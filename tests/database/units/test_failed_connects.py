"""A unit whose connection cannot be made: tried again if that may pass, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from optilock_apps.servers import free_port
from sqlalchemy import URL, Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from optilock import is_transient, retry, retrying, unit_of_work
from optilock.dialects.transient import commit_outcome_unknown

pytestmark = pytest.mark.engines("postgresql", "mariadb")

PASSES: dict[str, Callable[[URL], URL]] = {
    "nobody listens": lambda url: url.set(host="127.0.0.1", port=free_port()),
    "the name leads nowhere": lambda url: url.set(host="optilock.invalid"),
}
STAYS: dict[str, Callable[[URL], URL]] = {
    "no such database": lambda url: url.set(database="optilock_nix"),
    "no such user": lambda url: url.set(username="optilock_nix", password="nix"),
}


def failing(url: URL, **options: Any) -> tuple[BaseException, int]:
    """How a unit ends that begins there, and how often it was tried."""
    tries = []
    engine = create_engine(url)

    @unit_of_work(engine, retry=retrying(before_retry=tries.append, wait_max=0.1, **options))
    def unit(session: Session) -> None:
        session.execute(text("SELECT 1"))

    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            unit()
    finally:
        engine.dispose()
    return caught.value, len(tries) + 1


@pytest.mark.parametrize("change", PASSES.values(), ids=PASSES)
def test_a_server_that_is_not_reached_is_tried_again_and_not_for_ever(database, change):
    error, tries = failing(change(make_url(database.url)), attempts=3)
    assert tries == 3
    assert is_transient(error)
    assert not commit_outcome_unknown(error)
    assert "optilock: 3 attempts in" in error.__notes__[-1]


@pytest.mark.full
def test_no_attempt_begins_after_the_deadline(database):
    away = PASSES["nobody listens"](make_url(database.url))
    error, tries = failing(away, attempts=1_000, deadline=2)
    assert is_transient(error)
    assert 2 < tries < 1_000


@pytest.mark.parametrize("change", STAYS.values(), ids=STAYS)
def test_a_server_that_says_no_is_not_asked_again(database, change):
    error, tries = failing(change(make_url(database.url)))
    assert tries == 1
    assert not is_transient(error)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("change", [*PASSES.values(), *STAYS.values()], ids=[*PASSES, *STAYS])
def test_async_drivers_are_told_apart_in_the_same_way(async_database, change):

    async def connect() -> None:
        nonlocal tries
        tries += 1
        engine = create_async_engine(change(make_url(async_database.async_url)))
        try:
            async with engine.connect():
                pass
        finally:
            await engine.dispose()

    tries = 0
    passes = change in PASSES.values()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        asyncio.run(retry(attempts=2, wait_max=0)(connect)())
    assert tries == 1 + passes
    assert is_transient(caught.value) is passes
    assert not commit_outcome_unknown(caught.value)


# -- too many connections --------------------------------------------------------------------------


@pytest.fixture
def role(engine: Engine) -> Iterator[URL]:
    """A role that may have one connection."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS optilock_few")
        connection.exec_driver_sql("CREATE ROLE optilock_few LOGIN CONNECTION LIMIT 1")
    yield engine.url.set(username="optilock_few", password=None)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE optilock_few")


@pytest.mark.engines("postgresql")
def test_a_unit_that_finds_all_connections_taken_is_run_when_one_is_given_back(role):
    taken, ours = create_engine(role), create_engine(role)
    other = taken.connect()
    errors = []

    def give_back(event: Any) -> None:
        errors.append(event.error)
        if len(errors) == 2:
            other.close()
            taken.dispose()

    @unit_of_work(ours, retry=retrying(attempts=20, wait_max=0.1, before_retry=give_back))
    def unit(session: Session) -> Any:
        return session.scalar(text("SELECT 42"))

    try:
        assert unit() == 42
        assert len(errors) >= 2
        assert all("too many connections for role" in str(error) for error in errors)
    finally:
        taken.dispose()
        ours.dispose()


@pytest.mark.engines("postgresql")
def test_asyncpg_has_a_code_for_it(role):
    async def connect_twice() -> None:
        engine = create_async_engine(role.set(drivername="postgresql+asyncpg"))
        try:
            async with engine.connect(), engine.connect():
                pass
        finally:
            await engine.dispose()

    with pytest.raises(Exception, match="too many connections for role") as caught:
        asyncio.run(connect_twice())
    assert is_transient(caught.value)


# -- the operating system's own errors -------------------------------------------------------------


def test_an_error_of_another_connection_of_the_programs_own_is_not_ours(engine):
    """Asyncpg raises ConnectionRefusedError; so does a request to some other service."""

    @unit_of_work(engine)
    def unit(session: Session) -> None:
        session.execute(text("SELECT 1"))
        tries.append(1)
        raise ConnectionRefusedError("of a mail server")

    tries: list[int] = []
    with pytest.raises(ConnectionRefusedError):
        unit()
    assert tries == [1]
