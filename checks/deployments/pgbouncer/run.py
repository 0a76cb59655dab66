"""Writers behind a pooler, in several processes: ``python -m checks.deployments.pgbouncer.run``.

Each driver tells each of the stories of :mod:`checks.deployments.writers` for ``--seconds``, from
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
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from checks.deployments.messages import messages
from checks.deployments.pgbouncer.pooler import SETTINGS, Pooler, pooled
from checks.deployments.writers import (
    STORIES,
    Tally,
    Verdict,
    awrite,
    judge,
    make,
    write,
)

__all__ = ["DRIVERS", "written"]

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
    tally = write(engine, seconds, at_least=21, story=story)
    engine.dispose()
    return tally


async def _by_tasks(url: str, settings: Any, story: str, seconds: float) -> Tally:
    engine = create_async_engine(url, **settings)
    tally = await awrite(engine, seconds, at_least=21, story=story)
    await engine.dispose()
    return tally


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
            driver, is_async = DRIVERS[way]
            url, settings = pooler.url(driver), SETTINGS[driver]
            times = Counter(messages(pooler.server.url, url, settings, 1_000, is_async=is_async))
            print(
                f"{way}, messages, by how often they were booked: {dict(Counter(times.values()))}",
                flush=True,
            )
            bad = bad or {*times.values()} != {1}
        left = pooler.states() != before
        print("left on the pooler's connections:", pooler.states() if left else "nothing")
    return int(bad or left)


if __name__ == "__main__":
    sys.exit(main())
