"""Writers behind a pooler, in several processes: ``python -m tests.deployments.pgbouncer.run``.

Each driver tells each of the stories of :mod:`tests.deployments.writers` for ``--seconds``, from
two processes at once (a driver that numbers its statements begins with 1 in each), and sends
messages to itself. The program prints what became of the units, and of the messages; its exit code
is 1 if one was lost or doubled, if any unit ended in an error, or if something is left on a
connection of the pooler.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, create_engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock.queue import AsyncQueue, Queue
from optilock.tables.queue import message_tables
from tests.deployments.pgbouncer.pooler import SETTINGS, Pooler, pooled
from tests.deployments.writers import (
    STORIES,
    Booking,
    Tally,
    Verdict,
    awrite,
    judge,
    make,
    write,
)

__all__ = ["DRIVERS", "messages", "written"]

#: The ways to come: a driver, and whether its sessions are async.
DRIVERS = {
    "psycopg": ("psycopg", False),
    "psycopg-async": ("psycopg", True),
    "asyncpg": ("asyncpg", True),
}


def written(
    pooler: Pooler, way: str, story: str, seconds: float, processes: int = 1
) -> tuple[Tally, Verdict]:
    """Write by ``way`` and tell what became of it."""
    plain = create_engine(pooler.server.url)
    make(plain)
    tally = Tally()
    told = (pooler.url(DRIVERS[way][0]), way, story, seconds)
    if processes == 1:
        tally.add(_written(*told))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for one in [pool.submit(_written, *told) for _ in range(processes)]:
                tally.add(one.result())
    verdict = judge(plain, tally)
    plain.dispose()
    return tally, verdict


def _written(url: str, way: str, story: str, seconds: float) -> Tally:
    driver, is_async = DRIVERS[way]
    if is_async:
        return asyncio.run(_by_tasks(url, SETTINGS[driver], story, seconds))
    engine = create_engine(url, **SETTINGS[driver])
    tally = write(engine, seconds, story=story)
    engine.dispose()
    return tally


async def _by_tasks(url: str, settings: Any, story: str, seconds: float) -> Tally:
    engine = create_async_engine(url, **settings)
    tally = await awrite(engine, seconds, story=story)
    await engine.dispose()
    return tally


# -- messages --------------------------------------------------------------------------------------


def messages(pooler: Pooler, way: str, count: int) -> Counter[str]:
    """Send so many while a worker waits for them; how often each of them was booked."""
    plain = create_engine(pooler.server.url)
    make(plain)
    metadata = message_tables().messages.metadata
    metadata.drop_all(plain)
    metadata.create_all(plain)
    driver, is_async = DRIVERS[way]
    url = pooler.url(driver)
    sent = [uuid4().hex for _ in range(count)]
    if is_async:
        asyncio.run(_by_async_worker(create_async_engine(url, **SETTINGS[driver]), plain, sent))
    else:
        _by_worker(create_engine(url, **SETTINGS[driver]), plain, sent)
    with Session(plain) as session:
        found = Counter(session.scalars(select(Booking.unit)))
    plain.dispose()
    return Counter({unit: found[unit] for unit in sent})


def _all_booked(plain: Engine, sent: list[str], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    with plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        booked = select(Booking.id)
        while len(connection.execute(booked).all()) < len(sent) and time.monotonic() < until:
            time.sleep(0.05)


def _by_worker(engine: Engine, plain: Engine, sent: list[str]) -> None:
    def handle(message: Any, session: Session) -> None:
        session.add(Booking(unit=message.body, account=1))

    with Queue(engine, "booked") as queue:
        worker = queue.worker(handle, concurrency=3, sessions=sessionmaker(engine), signals=False)
        running = threading.Thread(target=worker.run)
        running.start()
        time.sleep(0.3)  # it waits by now
        for body in sent:
            queue.send(body)
        _all_booked(plain, sent)
        worker.stop()
        running.join()
    engine.dispose()


async def _by_async_worker(engine: AsyncEngine, plain: Engine, sent: list[str]) -> None:
    async def handle(message: Any, session: Any) -> None:
        session.add(Booking(unit=message.body, account=1))

    async with AsyncQueue(engine, "booked") as queue:
        worker = queue.worker(
            handle, concurrency=3, sessions=async_sessionmaker(engine), signals=False
        )
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.3)
        for body in sent:
            await queue.send(body)
        await asyncio.to_thread(_all_booked, plain, sent)
        worker.stop()
        await running
    await engine.dispose()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ways", nargs="*", default=[*DRIVERS])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    bad = False
    with pooled(2) as pooler:
        make(create_engine(pooler.server.url))
        before = pooler.states()
        for way in asked.ways:
            for story in STORIES:
                tally, verdict = written(pooler, way, story, asked.seconds, asked.processes)
                print(f"{way}, {story}: {verdict}", flush=True)
                errors = Counter(error[:160] for error, _ in tally.refused.values())
                print(*(f"    {n} x {error}\n" for error, n in errors.most_common(5)), end="")
                bad = bad or bool(verdict.harm or verdict.refused)
            times = Counter(messages(pooler, way, 1_000).values())
            print(f"{way}, messages, by how often they were booked: {dict(times)}", flush=True)
            bad = bad or set(times) != {1}
        left = pooler.states() != before
        print("left on the pooler's connections:", pooler.states() if left else "nothing")
    return int(bad or left)


if __name__ == "__main__":
    sys.exit(main())
