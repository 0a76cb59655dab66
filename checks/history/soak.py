"""A server that is ended every 30 seconds under many clients, for 10 minutes.

::

    python -m checks.history --clients 16 --soak
    python -m checks.history --clients 16 --soak --seconds 120 --engines postgresql --faults

The server is a private one. It ends without a word to its clients, and is back a second later.
Nothing may be lost or doubled, and what the process needs must not grow: resident memory, open
files, threads, and connections at the server. The numbers are taken every second. What the second
quarter of the run needs at most is compared with what the last quarter does.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from checks.deployments.restarts.run import ASYNC, KINDS
from checks.history import appends
from checks.history.appends import List, Record, Workload
from checks.history.load import Place, RandomFaults, judge, quiet, work

__all__ = ["Needs", "Sample", "main", "soak"]

_DRIVERS = {
    "postgresql": "psycopg",
    "postgresql-asyncpg": "asyncpg",
    "mariadb": "pymysql",
    "mariadb-asyncmy": "asyncmy",
}
_CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE user <> 'system user'",
}
#: Seconds that a server is away.
_AWAY = 1.0
#: How much more the end of a run may need: a share, and as many on top of it.
_ROOM = {"memory": (1.05, 8.0), "files": (1.0, 6), "threads": (1.0, 4), "connections": (1.0, 3)}


@dataclass(frozen=True)
class Sample:
    """What the process needs at one moment."""

    memory: float
    files: int
    threads: int
    connections: int | None


@dataclass
class Needs:
    """Samples of a run, and whether they grow."""

    samples: list[Sample] = field(default_factory=list)

    def grown(self) -> dict[str, tuple[float, float]]:
        """What needs more at the end than before: the medians of the second and the last quarter.

        The first quarter fills pools and caches.
        """
        found = {}
        for name, (share, more) in _ROOM.items():
            before, after = (self._median(name, quarter) for quarter in (1, 3))
            if after > before * share + more:
                found[name] = before, after
        return found

    def _median(self, name: str, quarter: int) -> float:
        size = max(1, len(self.samples) // 4)
        part = self.samples[quarter * size : (quarter + 1) * size]
        values = [value for one in part if (value := getattr(one, name)) is not None]
        return statistics.median(values) if values else 0.0

    def __str__(self) -> str:
        shown = (
            f"{name} {self._median(name, 1):.0f} -> {self._median(name, 3):.0f}" for name in _ROOM
        )
        return f"    {', '.join(shown)} (medians of the second and the last quarter; memory in MB)"


def _sample(plain: Engine) -> Sample:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    connections: int | None = None
    try:
        with plain.connect() as connection:
            connections = connection.scalar(text(_CONNECTIONS[plain.dialect.name]))
    except Exception:  # the server is away
        connections = None
    return Sample(
        memory=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        files=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        connections=connections,
    )


@contextmanager
def _beside(*runs: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these in threads until the block is left."""
    over = threading.Event()
    threads = [threading.Thread(target=run, args=[over]) for run in runs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def soak(name: str, options: argparse.Namespace, folder: Path) -> bool:
    """Run on one engine, and print what it shows; return whether that is right."""
    kind = _DRIVERS[name]
    driver, running = KINDS[kind]
    needs, ends = Needs(), [0]
    with running() as server, ExitStack() as stack:
        plain = create_engine(server.url, poolclass=NullPool)
        appends.make(plain)
        url = make_url(server.url).set(drivername=driver)
        make: Any = create_async_engine if kind in ASYNC else create_engine
        engine = make(url, pool_size=options.clients, max_overflow=2)
        here = Place(name if kind in ASYNC else name.partition("-")[0], [engine], plain)
        made = Workload(
            Record(folder / f"{name}.jsonl"),
            way=options.way,
            seed=options.first,
            options={"exactly_once": True} if options.exactly_once else {},
        )
        until = time.monotonic() + options.seconds

        def restart(over: threading.Event) -> None:
            while not over.wait(options.every) and until - time.monotonic() > 3 * _AWAY:
                server.restart(_AWAY)
                ends[0] += 1

        def look(over: threading.Event) -> None:
            while not over.wait(1.0):
                gc.collect()
                needs.samples.append(_sample(plain))

        faults = RandomFaults([engine], List) if options.faults else None
        if faults is not None:
            stack.enter_context(faults)
        with _beside(restart, look):
            work(here, made, options.clients, lambda: time.monotonic() > until)
        stack.close()
        if kind not in ASYNC:
            engine.dispose()
        title = f"{name}, {options.way}, {options.clients} clients, {options.seconds:g} s"
        outcome = judge(f"{title}, ended {ends[0]} times", options.way, name, made, plain)
        if faults is not None:
            outcome.met = faults.met
    print(outcome, needs, sep="\n", flush=True)
    for what, (before, after) in needs.grown().items():
        print(f"    {what} grows: {before:.0f} -> {after:.0f}", flush=True)
    return not outcome.broken and not needs.grown() and ends[0] > 0


def main(options: argparse.Namespace) -> int:
    """0 when nothing is lost or doubled and nothing grows, 1 otherwise."""
    unknown = sorted({*options.engines} - {*_DRIVERS})
    if unknown:
        raise SystemExit(f"--soak has servers for {', '.join(_DRIVERS)}, and not for {unknown[0]}")
    with quiet(), tempfile.TemporaryDirectory(prefix="optilock-soak-") as folder:
        right = [soak(name, options, Path(folder)) for name in options.engines]
    return int(not all(right))
