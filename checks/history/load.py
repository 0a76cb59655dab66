"""Many clients on one database for some seconds, with faults, and what their history shows.

::

    python -m checks.history --clients 16 --seconds 60 --faults
    python -m checks.history --clients 16 --seconds 60 --faults --way serializable
    python -m checks.history --clients 16 --seconds 10 --broken versions     # must show losses
    python -m checks.history --clients 16 --seconds 10 --faults --broken retry    # and doubled ones

Faults are those of :class:`optilock.testing.Faults`, armed at random, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine

from checks.deployments.galera.cluster import Cluster, running
from checks.history import appends
from checks.history.appends import BareList, List, Record, Workload
from checks.history.cycles import Finding, check
from optilock.testing import Fault, Faults
from tests.engines import ASYNC, Targets

__all__ = [
    "ENGINES",
    "Outcome",
    "Place",
    "RandomFaults",
    "forbidden",
    "judge",
    "load",
    "of_cluster",
    "place",
    "quiet",
]

ENGINES = ("sqlite-wal", "postgresql", "mariadb", "galera", "postgresql-asyncpg", "mariadb-asyncmy")
#: Seconds: clients who have stored too little, on a slow machine, go on for no longer.
_LIMIT = 60.0
#: A conflict cannot come between where a unit has locked the file or its rows before it writes.
ALWAYS_MET = ("commit stored", "commit not stored", "cut", "deadlock")
#: What no way to write may show.
_NEVER = frozenset(
    {
        "lost",
        "doubled",
        "aborted",
        "garbage",
        "intermediate",
        "internal",
        "orders",
        "G0",
        "G1c",
    }
)


def forbidden(way: str, engine: str) -> frozenset[str]:
    """The words that break a promise of this way to write on this engine.

    A version keeps writes apart, and not what was only read. ``SERIALIZABLE`` of a Galera cluster
    is that of each node alone.
    """
    if way == "verify" or (way == "serializable" and engine != "galera"):
        return _NEVER | {"G-single", "G2"}
    if way == "repeatable" and engine.startswith("postgresql"):
        return _NEVER | {"G-single"}
    return _NEVER


@dataclass
class Place:
    """The engines that clients use, and one to look at what is stored."""

    name: str
    engines: list[Any]
    plain: Engine

    @property
    def is_async(self) -> bool:
        return self.name in ASYNC and self.name not in ("sqlite-wal", "postgresql")


@contextmanager
def place(name: str, targets: Targets, folder: Path, clients: int) -> Iterator[Place]:
    """The database ``name``, with tables."""
    pool: dict[str, Any] = {"pool_size": clients, "max_overflow": 2}
    with ExitStack() as stack:
        if name == "galera":
            made, plain = of_cluster(stack.enter_context(running()), pool)
        elif name in ASYNC and name not in ("sqlite-wal", "postgresql"):
            from sqlalchemy.ext.asyncio import create_async_engine

            target = targets.get_async(name, folder)
            made, plain = [create_async_engine(str(target.async_url), **pool)], target.engine()
        else:
            target = targets.get(name, folder)
            made, plain = [target.engine(**pool)], target.engine()
        stack.callback(plain.dispose)
        appends.make(plain)
        here = Place(name, made, plain)
        yield here
        if not here.is_async:  # tasks have closed theirs in their loop
            for engine in made:
                engine.dispose()


ARM: dict[str, Callable[[Faults, random.Random, type[Any]], Fault]] = {
    "commit stored": lambda faults, chance, of: faults.commit_lost(stored=True),
    "commit not stored": lambda faults, chance, of: faults.commit_lost(stored=False),
    "cut": lambda faults, chance, of: faults.cut(statement=chance.randint(1, 6)),
    "deadlock": lambda faults, chance, of: faults.deadlock(),
    "conflict": lambda faults, chance, of: faults.conflict(of, 0),
}


def of_cluster(cluster: Cluster, pool: dict[str, Any]) -> tuple[list[Engine], Engine]:
    """An engine for each node, and one to look: all read what any node has committed."""
    causal = {"init_command": "SET SESSION wsrep_sync_wait = 15"}
    made = [create_engine(node.url, connect_args=causal, **pool) for node in cluster.nodes]
    return made, create_engine(cluster.nodes[0].url, connect_args=causal)


class RandomFaults:
    """Faults of some engines, one armed at a time, until the block is left."""

    def __init__(self, engines: list[Any], of: type[Any], seed: int = 1) -> None:
        self._faults = [Faults(engine) for engine in engines]
        self._of, self._chance = of, random.Random(seed)
        self._over = threading.Event()
        #: How often each was met.
        self.met: Counter[str] = Counter()

    def __enter__(self) -> RandomFaults:
        for one in self._faults:
            one.__enter__()
        self._thread = threading.Thread(target=self._arm)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        self._thread.join()
        for one in self._faults:
            one.__exit__(None, None, None)

    def _arm(self) -> None:
        chance = self._chance
        while not self._over.is_set():
            name = chance.choice([*ARM])
            armed = ARM[name](chance.choice(self._faults), chance, self._of)
            until = time.monotonic() + 0.5
            while not armed.met and time.monotonic() < until and not self._over.wait(0.01):
                pass
            armed.withdraw()
            self.met[name] += armed.met
            self._over.wait(0.02)


@dataclass
class Outcome:
    """What a run has shown."""

    title: str
    record: Record
    found: Counter[str]
    examples: list[Finding]
    forbidden: frozenset[str]
    met: Counter[str] = field(default_factory=Counter)

    @property
    def broken(self) -> Counter[str]:
        return Counter({word: n for word, n in self.found.items() if word in self.forbidden})

    def __str__(self) -> str:
        ended = self.record.ended
        lines = [
            f"{self.title}: {ended['ok']} units stored, {ended['info']} unknown,"
            f" {ended['fail']} failed, {self.record.retries} run again; lost"
            f" {self.found['lost']}, doubled {self.found['doubled']}"
        ]
        if self.met:
            lines.append(f"    faults: {dict(self.met)}")
        others = {word: n for word, n in self.found.items() if word not in ("lost", "doubled")}
        for word, count in sorted(others.items()):
            lines.append(f"    {word}: {count}{'' if word in self.forbidden else ' (no promise)'}")
        lines += [f"    {count} x {error}" for error, count in self.record.errors.most_common(4)]
        lines += [f"    {one.word}: {one.where[:400]}" for one in self.examples]
        lines += self.record.traces
        return "\n".join(lines)


def judge(title: str, way: str, engine: str, load: Workload, plain: Engine) -> Outcome:
    """Read all lists, and check the history."""
    found = check(load.record.transactions(), appends.lists(plain, load.of))
    promised = forbidden(way, engine)
    first: dict[str, Finding] = {}
    for one in found:
        if one.word in promised:
            first.setdefault(one.word, one)
    words = Counter(one.word for one in found)
    return Outcome(title, load.record, words, list(first.values()), promised)


def load(place: Place, options: argparse.Namespace, folder: Path) -> Outcome:
    """Let the clients work, and judge what they have done."""
    made = Workload(
        Record(folder / f"{place.name}.jsonl"),
        of=BareList if options.broken == "versions" else List,
        way=options.way,
        seed=options.first,
        is_naive=options.broken == "retry",
        options={"exactly_once": True} if options.exactly_once else {},
    )
    until, at_least = time.monotonic() + options.seconds, vars(options).get("at_least", 0)

    def is_over() -> bool:
        left, ended = until - time.monotonic(), made.record.ended
        return left < 0 and (ended["ok"] >= at_least or left < -_LIMIT)

    faults: Any = None
    with ExitStack() as stack:
        if options.faults:
            faults = stack.enter_context(RandomFaults(place.engines, made.of, options.first))
        work(place, made, options.clients, is_over)
    title = f"{place.name}, {options.way}, {options.clients} clients, {options.seconds:g} s"
    outcome = judge(title, options.way, place.name, made, place.plain)
    if faults is not None:
        outcome.met = faults.met
    return outcome


def work(place: Place, made: Workload, clients: int, is_over: Any) -> None:
    """Run the clients by threads, or by tasks."""
    if not place.is_async:
        appends.run(place.engines, made, clients, is_over)
        return

    async def tasks() -> None:
        await appends.run_async(place.engines, made, clients, is_over)
        for engine in place.engines:
            await engine.dispose()

    asyncio.run(tasks())


@contextmanager
def quiet() -> Iterator[None]:
    """Pools log the connections that they throw away, which is what is wanted here."""
    loggers = [logging.getLogger(name) for name in ("sqlalchemy.pool", "optilock", "asyncio")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def main(options: argparse.Namespace) -> int:
    """0 when no promise is broken, and the faults were met; 1 otherwise.

    Of a run that is broken on purpose: 0 when it shows that.
    """
    worst = 0
    with ExitStack() as stack:
        stack.enter_context(quiet())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="optilock-load-")))
        targets = Targets(stack)
        for name in options.engines:
            with place(name, targets, folder, options.clients) as here:
                outcome = load(here, options, folder)
            print(outcome, flush=True)
            wanted = {"versions": "lost", "retry": "doubled"}.get(options.broken)
            wrong = not outcome.found[wanted] if wanted else bool(outcome.broken)
            wrong |= options.faults and not all(outcome.met[kind] for kind in ALWAYS_MET)
            worst = max(worst, int(wrong))
    return worst
