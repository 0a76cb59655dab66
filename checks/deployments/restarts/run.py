"""Servers that restart under writers: ``python -m checks.deployments.restarts.run --seconds 120``.

Every 20 seconds (``--every``) the server ends, without a word to those who are connected, and is
back after ``--away`` seconds. Meanwhile eight writers go on (:mod:`checks.deployments.writers`).
The program prints what became of their units, and ends with exit code 1 if one was lost, doubled
or stored by half, or if more than 1 % of them ended in an error that another try would have cured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from optilock_apps import servers
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from checks.deployments.postgresql import primary
from checks.deployments.writers import Tally, Verdict, awrite, judge, make, write
from tests.support.failing_servers import restarted

__all__ = ["ASYNC", "KINDS", "Running", "run"]


@dataclass(frozen=True)
class Running:
    """A server that can be restarted."""

    url: str
    #: End it, and start it again after so many seconds.
    restart: Callable[[float], None]


@contextmanager
def _postgresql() -> Iterator[Running]:
    with primary() as node:

        def restart(away: float) -> None:
            node.crash()
            time.sleep(away)
            node.start()

        yield Running(node.url, restart)


@contextmanager
def _mariadb() -> Iterator[Running]:
    with servers.mariadb() as server, ExitStack() as stack:
        engine = create_engine(server.url)
        stack.callback(engine.dispose)
        yield Running(server.url, lambda away: stack.enter_context(restarted(engine, away=away)))


#: The driver by which its writers come, and its server.
KINDS = {
    "psycopg": ("postgresql+psycopg", _postgresql),
    "psycopg-async": ("postgresql+psycopg", _postgresql),
    "asyncpg": ("postgresql+asyncpg", _postgresql),
    "pymysql": ("mysql+pymysql", _mariadb),
    "asyncmy": ("mysql+asyncmy", _mariadb),
}
ASYNC = {"psycopg-async", "asyncpg", "asyncmy"}


def run(kind: str, seconds: float, every: float, away: float) -> tuple[Tally, Verdict]:
    driver, running = KINDS[kind]
    with running() as server:
        plain = create_engine(server.url)
        make(plain)
        plain.dispose()

        def restarts() -> None:
            until = time.monotonic() + seconds
            while until - time.monotonic() > every:
                time.sleep(every)
                server.restart(away)
            time.sleep(max(0.0, until - time.monotonic()))

        url = make_url(server.url).set(drivername=driver)
        if kind in ASYNC:
            tally = asyncio.run(_by_tasks(url, seconds, restarts))
        else:
            engine = create_engine(url)
            tally = write(engine, seconds, at_least=101, meanwhile=restarts)
            engine.dispose()
        verdict = judge(plain, tally)
        plain.dispose()
        return tally, verdict


async def _by_tasks(url: object, seconds: float, restarts: Callable[[], None]) -> Tally:
    engine = create_async_engine(url)  # type: ignore[arg-type]
    tally = await awrite(engine, seconds, at_least=101, meanwhile=restarts)
    await engine.dispose()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--every", type=float, default=20)
    parser.add_argument("--away", type=float, default=1)
    asked = parser.parse_args()
    worst = 0
    for kind in asked.kinds:
        tally, verdict = run(kind, asked.seconds, asked.every, asked.away)
        print(f"{kind}: {verdict}", flush=True)
        errors = Counter(error[:160] for error, _ in tally.refused.values())
        for error, count in errors.most_common(10):
            print(f"    {count} x {error}")
        worst = max(worst, bool(verdict.harm) or verdict.early > 0.01)
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
