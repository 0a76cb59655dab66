"""Messages, each of which is booked: once, never, or twice?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, create_engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from checks.deployments.writers import Booking, make
from optilock import retry
from optilock.queue import AsyncQueue, Queue
from optilock.tables.queue import message_tables

__all__ = ["messages"]


def messages(
    direct: str,
    url: str,
    settings: Any,
    count: int,
    *,
    is_async: bool,
    halfway: Callable[[], object] = int,
) -> Counter[str]:
    """Send so many while a worker waits for them; how often each of them was booked.

    ``direct`` is where the tables are made and looked at. ``halfway`` is called when half of the
    messages were sent.
    """
    plain = create_engine(direct, pool_pre_ping=True)
    make(plain)
    metadata = message_tables().messages.metadata
    metadata.drop_all(plain)
    metadata.create_all(plain)
    plain.dispose()
    sent = [uuid4().hex for _ in range(count)]
    halves = sent[: count // 2], sent[count // 2 :]
    if is_async:
        asyncio.run(_by_tasks(create_async_engine(url, **settings), plain, halves, halfway))
    else:
        _by_threads(create_engine(url, **settings), plain, halves, halfway)
    with Session(plain) as session:
        found = Counter(session.scalars(select(Booking.unit)))
    plain.dispose()
    return Counter({unit: found[unit] for unit in sent})


def _until_booked(plain: Engine, count: int, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    with plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while len(connection.scalars(select(Booking.id)).all()) < count:
            if time.monotonic() > until:
                return
            time.sleep(0.05)


def _by_threads(engine: Engine, plain: Engine, halves: Sequence[list[str]], halfway: Any) -> None:
    def handle(message: Any, session: Session) -> None:
        session.add(Booking(unit=message.body, account=1))

    with Queue(engine, "booked", visibility=3) as queue:
        worker = queue.worker(handle, concurrency=3, sessions=sessionmaker(engine), signals=False)
        running = threading.Thread(target=worker.run)
        running.start()
        time.sleep(0.3)  # it waits by now
        for body in halves[0]:
            queue.send(body)
        halfway()
        for body in halves[1]:
            retry(attempts=5)(queue.send)(body, dedup=body)
        _until_booked(plain, sum(map(len, halves)))
        assert running.is_alive()
        worker.stop()
        running.join()
    engine.dispose()


async def _by_tasks(
    engine: AsyncEngine, plain: Engine, halves: Sequence[list[str]], halfway: Any
) -> None:
    async def handle(message: Any, session: Any) -> None:
        session.add(Booking(unit=message.body, account=1))

    async with AsyncQueue(engine, "booked", visibility=3) as queue:
        sessions = async_sessionmaker(engine)
        worker = queue.worker(handle, concurrency=3, sessions=sessions, signals=False)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.3)
        for body in halves[0]:
            await queue.send(body)
        await asyncio.to_thread(halfway)
        for body in halves[1]:
            await retry(attempts=5)(queue.send)(body, dedup=body)
        await asyncio.to_thread(_until_booked, plain, sum(map(len, halves)))
        assert not running.done()
        worker.stop()
        await running
    await engine.dispose()
