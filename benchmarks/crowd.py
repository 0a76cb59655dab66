"""Many writers at once: processes, each with one connection for every subject.

::

    with crowd(place.url, 8) as writers:
        result = writers.turn(Turn("optilock", workload, seconds=2))
        print(result.goodput, result.p99, result.fairness)

Threads would wait for each other's interpreter, and not for the database. A writer does one unit
after the other, each from its first attempt to the COMMIT that stores it, until the time is up; the
first part of it is a warm-up. Writers begin at the same moment.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import multiprocessing
import random
import sys
import time
import traceback
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from statistics import fmean
from typing import Any, Protocol

from benchmarks.stores import again
from benchmarks.stores.peers import opened
from benchmarks.stores.rows import Look, Rows, Store, Work

__all__ = ["PAUSED", "Crowd", "Load", "Turn", "Workload", "crowd"]

#: Of the time of a turn, before what counts.
_WARM = 0.5
#: Units before the first turn, for what is made once: statements, plans, mappings.
_UNITS = 8
#: Seconds in which the writers hear when they begin.
_HEAR = 0.05
#: Seconds until a writer says where it is, and until its answer is no longer waited for.
_SLOW, _LONGEST = 100, 120


#: Among what a unit has added: nanoseconds that do not belong to it.
PAUSED = "paused"


class Workload(Protocol):
    """What the writers do; it is sent to their processes."""

    def unit(self, chance: random.Random, writer: int, seconds: float) -> Work[Counter[str]]:
        """One unit ``seconds`` after the beginning; its work says what it has added."""


@dataclass(frozen=True)
class Turn:
    """One subject's time."""

    subject: str
    workload: Workload
    writers: int
    seconds: float
    seed: int = 0
    #: When it begins and who this is: filled in when it is sent.
    start: float = 0.0
    writer: int = 0


@dataclass(frozen=True)
class Warm:
    """What a turn needs is done before it: connections, statements that are made once."""

    turn: Turn


@dataclass(frozen=True)
class Share:
    """What one writer did."""

    #: Units that were stored in the time that counts, and how long each of them took that began.
    done: int
    seconds: Sequence[float]
    attempts: int
    deadlocks: int
    #: Of all units, those of the warm-up too: what was added to the tables.
    added: Counter[str]


@dataclass(frozen=True)
class Load:
    """What all writers did in one turn."""

    seconds: float
    shares: Sequence[Share]
    added: Counter[str] = field(default_factory=Counter)
    #: What was promised and is not true afterwards, counted.
    broken: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        """Units that were stored."""
        return sum(share.done for share in self.shares)

    @property
    def mean(self) -> float:
        """Seconds that a unit took in the mean."""
        each = [second for share in self.shares for second in share.seconds]
        return fmean(each) if each else self.seconds

    @property
    def goodput(self) -> float:
        """Units stored a second."""
        return self.done / self.seconds

    def percentile(self, part: float) -> float:
        """Seconds that a unit took, with all its attempts and waits."""
        each = sorted(second for share in self.shares for second in share.seconds)
        return each[min(len(each) - 1, int(len(each) * part))] if each else self.seconds

    @property
    def deadlocks(self) -> int:
        """Deadlocks that the programs have seen through SQLAlchemy."""
        return sum(share.deadlocks for share in self.shares)

    @property
    def fairness(self) -> float:
        """The units of the slowest writer for each one of the fastest."""
        counts = [share.done for share in self.shares]
        return min(counts) / max(counts) if max(counts) else 0.0

    @property
    def attempts(self) -> float:
        """Attempts for each unit that was stored."""
        units = sum(len(share.seconds) for share in self.shares)
        return sum(share.attempts for share in self.shares) / units if units else 0.0


class Crowd:
    """The writers, waiting."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def turn(self, turn: Turn) -> Load:
        """Let the first writers do this."""
        pipes = self._pipes[: turn.writers]
        turns = [replace(turn, writer=number) for number in range(len(pipes))]
        warmed: list[Counter[str]] = self._ask(pipes, [Warm(each) for each in turns])
        start = time.monotonic() + _HEAR
        shares: list[Share] = self._ask(pipes, [replace(each, start=start) for each in turns])
        added: Counter[str] = Counter()
        for each in (*warmed, *(share.added for share in shares)):
            added.update(each)
        return Load(turn.seconds, shares, added)

    @staticmethod
    def _ask(pipes: Sequence[Connection], questions: Sequence[Any]) -> list[Any]:
        for pipe, question in zip(pipes, questions, strict=True):
            pipe.send(question)
        answers = []
        for pipe in pipes:
            if not pipe.poll(_LONGEST):
                raise RuntimeError("a writer has not answered")
            answers.append(pipe.recv())
        failed = [answer for answer in answers if isinstance(answer, str)]
        if failed:
            raise RuntimeError(f"a writer has failed:\n{failed[0]}")
        return answers


@contextmanager
def crowd(url: str, writers: int) -> Iterator[Crowd]:
    """So many processes, connected to ``url`` as soon as a subject needs it."""
    # A server that has imported everything makes them quickly, and before it has any connection.
    way = "spawn" if sys.platform == "win32" else "forkserver"
    context: Any = multiprocessing.get_context(way)
    if way == "forkserver":
        context.set_forkserver_preload(["benchmarks.crowd", "benchmarks.stores.by_sqlalchemy"])
    pipes, processes = [], []
    try:
        for _ in range(writers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, url), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield Crowd(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(_LONGEST)


def _serve(pipe: Connection, url: str) -> None:
    # It tells of each pipeline that a deadlock ends, and the work is run again anyway.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    writer = Writer(url)
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            break
        faulthandler.dump_traceback_later(_SLOW)
        try:
            pipe.send(writer.warm(asked.turn) if isinstance(asked, Warm) else writer.work(asked))
        except Exception:
            pipe.send(traceback.format_exc())
        finally:
            faulthandler.cancel_dump_traceback_later()
    writer.close()


class Writer:
    """One of the processes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: dict[str, Store] = {}
        self._warm: set[tuple[str, str]] = set()

    def warm(self, turn: Turn) -> Counter[str]:
        """Some units that do not count, where the subject has not done this before."""
        if turn.subject not in self._stores:
            self._stores[turn.subject] = opened(turn.subject, self._url)
        added: Counter[str] = Counter()
        if (turn.subject, repr(turn.workload)) not in self._warm:
            self._warm.add((turn.subject, repr(turn.workload)))
            chance = random.Random(turn.writer)
            for _ in range(_UNITS):
                unit = turn.workload.unit(chance, turn.writer, 0)
                added.update(_run_of(self._stores[turn.subject], unit)(unit))
            del added[PAUSED]
        return added

    def work(self, turn: Turn) -> Share:
        """The units of one turn."""
        return _work(self._stores[turn.subject], turn)

    def close(self) -> None:
        """Give all connections back."""
        for store in self._stores.values():
            store.close()


def _run_of(store: Store, work: Work[Any]) -> Callable[[Work[Any]], Any]:
    """How the store does such work."""
    return store.look if isinstance(work, Look) else store.run


def _work(store: Store, turn: Turn) -> Share:
    chance = random.Random(f"{turn.seed} {turn.writer}")
    counts = turn.start + _WARM * turn.seconds
    ends = counts + turn.seconds
    clock = time.monotonic
    added: Counter[str] = Counter()
    seconds: array[float] = array("d")
    done = attempts = tried = 0

    def attempt(work: Work[Counter[str]], rows: Rows) -> Counter[str]:
        nonlocal tried
        tried += 1
        return work(rows)

    deadlocks = again.DEADLOCKS.total()
    time.sleep(max(0.0, turn.start - clock()))
    while (begin := clock()) < ends:
        tried = 0
        work = turn.workload.unit(chance, turn.writer, begin - turn.start)
        given = _run_of(store, work)(functools.partial(attempt, work))
        end = clock()
        paused = given.pop(PAUSED, 0) / 1e9
        added.update(given)
        if begin >= counts:
            seconds.append(end - begin - paused)
            attempts += tried
        done += counts <= end < ends
    return Share(done, seconds, attempts, again.DEADLOCKS.total() - deadlocks, added)
