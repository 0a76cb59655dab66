"""Does a roll-out make writers wait, and does it go on after it was killed?

A table of a million rows gets a version (``optilock.rollout``, in a process of its own) while four
other processes update single rows with a short pause between two updates. Once the roll-out is
killed in the middle (SIGKILL), and run again. Before its last step somebody begins a transaction
that reads the table and stays open for some seconds, so that step is in vain a few times. At last
the version is dropped, and rolled out once more as fast as a user may ask for it.

A watcher asks the server every few milliseconds whom the roll-out blocks (``pg_blocking_pids``; on
MariaDB who waits for the table's metadata lock) and for how long. The writers' 99th percentile
during the roll-out is set against the one of the same writers before it and after it, watched as
well; what it takes Python to start a process is no part of either. At the end the sum of the stored
numbers must be the number of updates: none was lost.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from sqlalchemy import Engine, create_engine, text

from benchmarks.plan import MANY, Plan
from benchmarks.servers import Place, opened
from benchmarks.table import CountLine, Line
from optilock.rollout import roll_out
from optilock.rollout.claim import TERM
from optilock.rollout.report import Silent
from optilock.tokens import Counter

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "mariadb")

_ROWS = 1_000_000
_QUICK_ROWS = 50_000
_WRITERS = 4
#: Seconds between two updates of a writer, and of writing before and after the roll-out.
_PAUSE = 0.005
_QUIET = 15.0
#: Seconds between two looks at who is blocked, and what a wait may last, in milliseconds.
_LOOK = 0.005
_LONGEST = 250
_NAME = "optilock roll-out"
#: Seconds that the transaction stays open.
_HELD = 8.0
#: What a user says who wants it done soon, and how many rows a second he wants then.
_FAST: dict[str, Any] = {"share": 1.0, "batch": 1_000}
_WANTED = 5_000


#: From when to when.
Span = tuple[float, float]


@dataclass
class Writing:
    """What the writers did: for each update when it began and how long it took."""

    updates: list[tuple[float, float]] = field(default_factory=list)

    def p99(self, *times: Span) -> float:
        """Seconds that 99 of 100 updates of these times stayed below."""
        took = sorted(
            seconds
            for at, seconds in self.updates
            if any(begin <= at < end for begin, end in times)
        )
        return took[int(len(took) * 0.99)]


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question."""
    rows = _QUICK_ROWS if plan.quick else _ROWS
    rows = rows if plan.many == MANY else plan.many
    with opened(place.url) as engine:
        _create(engine, rows)
        with _writers(place.url, rows) as writers, _watched(place.url) as waits:
            before = _quiet()
            killed = _rolled_out(place.url, kill_after=rows // 3)
            time.sleep(TERM)  # until the claim of the killed one is over
            again = _rolled_out(place.url, held=_HELD)
            after = _quiet()
            longest = 1000 * max(waits, default=0.0)
            _drop_version(engine)
            fast = _rolled_out(place.url, **_FAST)
        written = Writing([update for one in writers for update in one.result()])
        stored = _sum(engine)
    quiet = written.p99(before, after)
    during = written.p99(killed.span, again.span)
    yield from _lines(place, rows, longest, written, (quiet, during), stored)
    yield from _about_the_roll_out(place, rows, killed, again)
    seconds = fast.span[1] - fast.span[0]
    asked = CountLine(
        f"roll-out: ms for {_WANTED:,} rows with --share 1 --batch 1000",
        place.label,
        rows,
        round(1000 * seconds * _WANTED / rows),
        1000,
    )
    yield asked


def _quiet() -> Span:
    """Let the writers write alone."""
    began = time.time()
    time.sleep(_QUIET)
    return began, time.time()


def _lines(
    place: Place,
    rows: int,
    longest: float,
    written: Writing,
    p99: tuple[float, float],
    stored: int,
) -> Iterator[Line]:
    def line(question: str, count: float, goal: int | None) -> CountLine:
        return CountLine(f"roll-out: {question}", place.label, rows, round(count), goal)

    quiet, during = p99
    yield line("longest wait that it caused, ms", longest, _LONGEST)
    yield line("writers' p99, in % of the p99 without it", 100 * during / quiet, 150)
    yield line("writers' p99 during it, µs", 1e6 * during, None)
    yield line("updates by the writers", len(written.updates), None)
    yield line("updates lost", len(written.updates) - stored, 0)


def _about_the_roll_out(place: Place, rows: int, killed: Done, again: Done) -> Iterator[Line]:
    def line(question: str, count: float, goal: int | None) -> CountLine:
        return CountLine(f"roll-out: {question}", place.label, rows, round(count), goal)

    seconds = sum(end - begin for begin, end in (killed.span, again.span))
    yield line("rows a second, rests included", rows / seconds, None)
    yield line("rows filled when it was killed (SIGKILL)", killed.filled, None)
    yield line("rows filled by the second run", again.filled, None)
    yield line("rows without a version", again.missing, 0)
    yield line("growth of its memory while filling, MB", again.growth, 20)


# -- the roll-out, in a process of its own --------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """How far one run came."""

    filled: int
    missing: int
    #: Megabytes.
    growth: float
    span: Span


class _Telling(Silent):
    """Tells the parent how many rows are filled, and has the table held before the last step."""

    def __init__(self, told: Queue[int], url: str, held: float) -> None:
        self.told = told
        self.url, self.held = url, held
        self.memory = 0

    def step(self, name: str, total: int | None = None) -> None:
        if name == "require it" and self.held:
            holds = threading.Event()
            threading.Thread(target=_hold, args=(self.url, self.held, holds)).start()
            holds.wait()

    def filled(self, rows: int) -> None:
        self.memory = self.memory or _peak()
        self.told.put(rows)


def _rolled_out(url: str, kill_after: int | None = None, **options: Any) -> Done:
    context = multiprocessing.get_context("spawn")
    told: Queue[int] = context.Queue()
    grown: Queue[float] = context.Queue()
    ready, go = context.Event(), context.Event()
    process = context.Process(target=_roll_out, args=(url, told, grown, ready, go, options))
    process.start()
    ready.wait()
    began, filled = time.time(), 0
    go.set()
    while process.is_alive() or not told.empty():
        while not told.empty():
            filled += told.get()
        if kill_after is not None and filled >= kill_after and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            break
        time.sleep(0.01)
    span = began, time.time()
    with opened(url) as engine, engine.connect() as connection:
        missing = connection.scalar(text("SELECT count(*) FROM parcels WHERE version IS NULL"))
    return Done(filled, missing or 0, grown.get() if kill_after is None else 0.0, span)


def _roll_out(
    url: str,
    told: Queue[int],
    grown: Queue[float],
    ready: Event,
    go: Event,
    options: dict[str, Any],
) -> None:
    named = {"application_name": _NAME} if url.startswith("postgresql") else {}
    engine, held = create_engine(url, connect_args=named), options.pop("held", 0.0)
    telling = _Telling(told, url, held)
    ready.set()
    go.wait()
    roll_out(engine, "parcels", token=Counter(), progress=telling, **options)
    engine.dispose()
    grown.put((_peak() - telling.memory) / 1024)


def _hold(url: str, seconds: float, holds: threading.Event) -> None:
    """A transaction that has read the table and does not end for so long."""
    with opened(url) as engine, engine.connect() as connection:
        connection.execute(text("SELECT owner FROM parcels WHERE id = 1")).all()
        holds.set()
        time.sleep(seconds)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# -- the writers, and who watches them ------------------------------------------------------------


def _create(engine: Engine, rows: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS parcels"))
        connection.execute(
            text("CREATE TABLE parcels (id BIGINT PRIMARY KEY, owner TEXT, moves INT NOT NULL)")
        )
        for statement in _FILLED[engine.dialect.name]:
            connection.execute(text(statement.format(rows=rows)))


#: With statistics, as a table that lives has them.
_FILLED = {
    "postgresql": (
        "INSERT INTO parcels SELECT n, 'owner ' || n, 0 FROM generate_series(1, {rows}) n",
        "ANALYZE parcels",
    ),
    "mysql": (
        "INSERT INTO parcels SELECT seq, CONCAT('owner ', seq), 0 FROM seq_1_to_{rows}",
        "ANALYZE TABLE parcels",
    ),
}


def _drop_version(engine: Engine) -> None:
    """Beside the writers; a moment that is not measured."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE parcels DROP COLUMN version"))


def _sum(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT sum(moves) FROM parcels")) or 0)


_over: Event


@contextmanager
def _writers(url: str, rows: int) -> Iterator[list[Future[Any]]]:
    """Processes that update until the block is left; their results are there afterwards."""
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    with ProcessPoolExecutor(_WRITERS, context, _begin, (over,)) as pool:
        writers = [pool.submit(_write, url, rows, number) for number in range(_WRITERS)]
        time.sleep(1)  # they connect
        try:
            yield writers
        finally:
            over.set()


def _begin(over: Event) -> None:
    global _over
    _over = over


def _write(url: str, rows: int, number: int) -> list[tuple[float, float]]:
    chance = random.Random(number)
    update = text("UPDATE parcels SET moves = moves + 1 WHERE id = :id")
    done = []
    with opened(url) as engine:
        while not _over.is_set():
            at, started = time.time(), time.perf_counter()
            with engine.begin() as connection:
                connection.execute(update, {"id": chance.randint(1, rows)})
            done.append((at, time.perf_counter() - started))
            time.sleep(_PAUSE)
    return done


_BLOCKED = {
    "mysql": text(
        "SELECT time_ms / 1000 FROM information_schema.processlist"
        " WHERE state = 'Waiting for table metadata lock' AND info LIKE 'UPDATE parcels%'"
        " AND :name <> ''"
    ),
    "postgresql": text(
        "SELECT extract(epoch FROM clock_timestamp() - l.waitstart) FROM pg_locks l"
        " WHERE NOT l.granted AND l.waitstart IS NOT NULL AND EXISTS (SELECT"
        " FROM pg_stat_activity a WHERE a.application_name = :name"
        " AND a.pid = ANY(pg_blocking_pids(l.pid)))"
    ),
}


@contextmanager
def _watched(url: str) -> Iterator[list[float]]:
    """The waits, in seconds, of those whom the roll-out blocks."""
    waits: list[float] = []
    over = threading.Event()

    def watch() -> None:
        with opened(url) as engine, engine.connect() as connection:
            asking = connection.execution_options(isolation_level="AUTOCOMMIT")
            blocked = _BLOCKED[engine.dialect.name]
            while not over.wait(_LOOK):
                waits.extend(float(s) for s in asking.scalars(blocked, {"name": _NAME}))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield waits
    finally:
        over.set()
        watcher.join()
