"""A pooler that lets nobody in, or whose server is away: one passes, the other does not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from checks.deployments.pgbouncer.pooler import SETTINGS, pooled
from checks.deployments.writers import awrite, judge, make, write
from optilock import is_transient

WRONG = {
    "no such database": lambda url: url.removesuffix("postgres") + "nix",
    "no such user": lambda url: url.replace("postgres@", "nix@"),
}


def connect(url: str) -> None:
    create_engine(url).connect()


def connect_by_asyncpg(url: str) -> None:
    async def story() -> None:
        engine = create_async_engine(url.replace("+psycopg", "+asyncpg"))
        await engine.connect()

    asyncio.run(story())


@pytest.mark.parametrize("connects", [connect, connect_by_asyncpg])
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_what_the_pooler_does_not_know_is_not_asked_for_again(pooler, connects, change):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        connects(change(pooler.url()))
    assert not is_transient(caught.value)


@pytest.mark.parametrize("driver", SETTINGS)
def test_units_wait_for_a_server_that_restarts_behind_it(driver):
    with pooled(2) as pooler:
        plain = create_engine(pooler.server.url)
        make(plain)
        plain.dispose()

        def restarts() -> None:
            for _ in range(2):
                time.sleep(1)
                pooler.server.crash()
                time.sleep(0.5)
                pooler.server.start()
            time.sleep(1)

        url: Any = pooler.url(driver)
        if driver == "asyncpg":
            tally = asyncio.run(by_tasks(url, restarts))
        else:
            engine = create_engine(url, **SETTINGS[driver])
            tally = write(engine, 4, at_least=21, meanwhile=restarts)
            engine.dispose()
        verdict = judge(plain, tally)
        plain.dispose()
    assert verdict.harm == 0, verdict
    assert verdict.early <= 0.01, [*tally.refused.values()][:3]
    assert verdict.stored > 20


async def by_tasks(url: Any, restarts: Any) -> Any:
    engine = create_async_engine(url, **SETTINGS["asyncpg"])
    tally = await awrite(engine, 4, at_least=21, meanwhile=restarts)
    await engine.dispose()
    return tally
