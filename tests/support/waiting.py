"""Waiting for a state. A limit only ends a test that hangs: it costs nothing when the state comes.

``until(true)``        wait until ``true()`` is true
``renewed(held)``      wait until a lease or a handle of a block is renewed once more
``until_awaited``, ``renewed_awaited``  the same in a coroutine, which lets its tasks run
``until_past(engine, moment)``  until the database's clock is past the moment
``turn()``             lets each other task of the event loop go one step on
``for_ever()``         waits until it is cancelled
``until_a_lock_is_waited_for(engine)``  by somebody in its database; PostgreSQL and MariaDB
``until_no_lock_is_waited_for(engine)``  any more, and the server says so, too
``OFTEN``, ``often``   a length, and a fixture: such a lease or handle is renewed every 0.3 seconds
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from optilock.leases import renewal
from optilock.tokens.sql_functions import ServerTime

__all__ = [
    "LIMIT",
    "OFTEN",
    "for_ever",
    "is_after",
    "often",
    "renewed",
    "renewed_awaited",
    "turn",
    "until",
    "until_a_lock_is_waited_for",
    "until_awaited",
    "until_no_lock_is_waited_for",
    "until_past",
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
        _end_at(end)
        threading.Event().wait(every)


def _end_at(end: float) -> None:
    if time.monotonic() >= end:
        raise AssertionError("it does not become true")


def until_past(engine: Engine, moment: datetime | None) -> None:
    """Something that is not renewed ends at this moment."""
    assert moment is not None

    def is_past() -> bool:
        with engine.connect() as connection:
            return is_after(connection.scalar(select(ServerTime())), moment)

    until(is_past)


def is_after(now: datetime | None, moment: datetime) -> bool:
    return now is not None and now.replace(tzinfo=None) > moment.replace(tzinfo=None)


_WAITING = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ),
    "mysql": (
        "SELECT count(*) FROM information_schema.innodb_trx t"
        " JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
        " WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()"
    ),
}


def until_a_lock_is_waited_for(engine: Engine) -> None:
    _until_waiting(engine, bool)


def until_no_lock_is_waited_for(engine: Engine) -> None:
    _until_waiting(engine, lambda count: not count)


def _until_waiting(engine: Engine, enough: Callable[[Any], bool]) -> None:
    asked = text(_WAITING[{"mariadb": "mysql"}.get(engine.dialect.name, engine.dialect.name)])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        until(lambda: enough(connection.scalar(asked)), every=0.15)  # MariaDB's is 0.1 s old


def renewed(held: Any) -> None:
    """What is left becomes more by that alone."""
    least = [held.left]
    until(lambda: held.left > least[0] or least.__setitem__(0, held.left))


async def until_awaited(true: Callable[[], Any], seconds: float = LIMIT) -> None:
    """``true`` may be a function that gives a coroutine."""
    end, loop = time.monotonic() + seconds, asyncio.get_running_loop()
    while True:
        found = true()
        if await found if inspect.isawaitable(found) else found:
            return
        _end_at(end)
        pause = loop.create_future()
        handle = loop.call_later(0.02, pause.set_result, None)
        try:
            await pause
        finally:
            handle.cancel()


async def renewed_awaited(held: Any) -> None:
    least = [held.left]
    await until_awaited(lambda: held.left > least[0] or least.__setitem__(0, held.left))


class _Turn:
    def __await__(self) -> Generator[None]:
        yield


async def turn() -> None:
    await _Turn()


async def for_ever() -> None:
    await asyncio.Event().wait()
