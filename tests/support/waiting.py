"""Waiting for a state. A limit only ends a test that hangs: it costs nothing when the state comes.

``until(true)``        wait until ``true()`` is true
``renewed(held)``      wait until a lease or a handle of a block is renewed once more
``until_awaited``, ``renewed_awaited``  the same in a coroutine, which lets its tasks run
``until_a_lock_is_waited_for(engine)``  by somebody on the server; PostgreSQL and MariaDB
``OFTEN``, ``often``   a length, and a fixture: such a lease or handle is renewed every 0.3 seconds
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text

from optilock.leases import renewal

__all__ = [
    "LIMIT",
    "OFTEN",
    "often",
    "renewed",
    "renewed_awaited",
    "until",
    "until_a_lock_is_waited_for",
    "until_awaited",
]

#: Seconds.
LIMIT = 60.0
#: Seconds: far longer than a renewal is late on a busy machine.
OFTEN = 30.0


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_RENEWED_AFTER", 0.01)


def until(true: Callable[[], Any], seconds: float = LIMIT, *, every: float = 0.02) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(every)


_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def until_a_lock_is_waited_for(engine: Engine) -> None:
    asked = text(_WAITING[{"mariadb": "mysql"}.get(engine.dialect.name, engine.dialect.name)])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        until(lambda: connection.scalar(asked), every=0.15)  # MariaDB looks anew after 0.1 s


def renewed(held: Any) -> None:
    before = held._until
    until(lambda: held._until > before)


async def until_awaited(true: Callable[[], Awaitable[Any]], seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not await true():
        assert time.monotonic() < end, "it does not become true"
        await asyncio.sleep(0.02)


async def renewed_awaited(held: Any) -> None:
    before = held._until

    async def is_renewed() -> bool:
        return held._until > before

    await until_awaited(is_renewed)
