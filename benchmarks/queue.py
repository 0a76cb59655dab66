"""What does it take to receive and acknowledge messages, against pgqueuer and procrastinate?

Each queue works in processes of its own, on one connection each, with psycopg: one worker, or four
at the same time, of batches of 1, 10 and 100. They take turns; what counts of a turn is its median
batch. Then, on SQLite and MariaDB as well: what an idle worker sends, and what a receive and
``metrics()`` cost with 1,000 to 1,000,000 messages that wait, on PostgreSQL to 10,000,000.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from threading import Thread

from sqlalchemy import Engine, create_engine, event, text

from benchmarks.measure import Timing, interleave
from benchmarks.plan import LONG, MEDIUM, Plan
from benchmarks.queue_subjects import SUBJECTS, Crowd, crowd, installed
from benchmarks.series import NUMBERS
from benchmarks.servers import Place
from benchmarks.table import CountLine, Line, compare
from optilock.queue import Queue
from optilock.tables.queue import message_tables

__all__ = ["DATABASES", "run"]

DATABASES = ("socket", "sqlite", "mariadb")

_AGAINST = "pgqueuer"
_BATCHES = (1, 10, 100)
_WORKERS = (1, 4)
#: Messages of a timing, and worker.
_COUNTS = {1: 60, 10: 300, 100: 1_500}
#: 2.0 times as fast, 1.6, and 1.4 for those who send.
_GOALS = {"optilock": 1 / 2.0, "optilock, async": 1 / 1.6}
_SEND = 1 / 1.4
_FLAT = 1.5
_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_MOST = {"socket": 10_000_000}
#: Statements of an idle worker in two seconds.
_IDLE = {"socket": 0}
_ASKING = 2


def run(place: Place, plan: Plan) -> Iterator[Line]:
    """The lines of this question for one database."""
    engine = create_engine(place.url)
    message_tables().messages.metadata.create_all(engine)
    try:
        if place.name != "socket":
            pass  # the others are for PostgreSQL only
        elif installed(_AGAINST):
            yield from _compared(place, plan)
        else:
            print("pgqueuer is left out: pip install --group bench-queue", file=sys.stderr)
        yield _idle(place)
        yield from _sizes(place, plan)
    finally:
        message_tables().messages.metadata.drop_all(engine)
        engine.dispose()


def _compared(place: Place, plan: Plan) -> Iterator[Line]:
    names = [name for name in SUBJECTS if installed(name)]
    with ExitStack() as stack:
        crowds = {
            name: stack.enter_context(crowd(name, place.url, max(_WORKERS))) for name in names
        }
        for workers in _WORKERS:
            for batch in _BATCHES:
                yield from _taking(place, plan, crowds, workers, batch)
        for batch in _BATCHES:
            yield from _sending(place, plan, crowds, batch)


def _taking(
    place: Place, plan: Plan, crowds: dict[str, Crowd], workers: int, batch: int
) -> Iterator[Line]:
    count = _COUNTS[batch]

    def taken(name: str) -> Timing:
        many = count * workers
        crowds[name].do("send", many, _COUNTS[1])  # which divides them all
        seconds, used = crowds[name].do("take", count, batch, members=workers)
        return Timing(flush=seconds, cpu=used)

    names = [name for name in crowds if batch == 1 or name != "procrastinate"]
    timings = interleave(
        {name: (lambda name=name: taken(name)) for name in names},  # type: ignore[misc]
        rounds=plan.rounds_for(LONG),
    )
    question = f"receive and acknowledge, {workers} worker{'s' * (workers > 1)}"
    for subject in names:
        if subject == _AGAINST:
            continue
        goals = {"flush": _GOALS.get(subject)}
        lines = compare(
            f"{question}, {subject}",
            place.label,
            batch,
            timings,
            against=_AGAINST,
            subject=subject,
            goals=goals,
        )
        yield from lines


def _sending(place: Place, plan: Plan, crowds: dict[str, Crowd], batch: int) -> Iterator[Line]:
    count = _COUNTS[batch]

    def sent(name: str) -> Timing:
        seconds, used = crowds[name].do("send", count, batch)
        crowds[name].do("take", count, 100)
        return Timing(flush=seconds, cpu=used)

    names = [name for name in crowds if name != "optilock, two trips"]
    timings = interleave(
        {name: (lambda name=name: sent(name)) for name in names},  # type: ignore[misc]
        rounds=plan.rounds_for(LONG),
    )
    for subject in (name for name in names if name != _AGAINST):
        goal = _SEND if subject.startswith("optilock") else None
        yield from compare(
            f"send, {subject}",
            place.label,
            batch,
            timings,
            against=_AGAINST,
            subject=subject,
            goals={"flush": goal},
        )


def _idle(place: Place) -> Line:
    """What a worker sends in two seconds in which there is nothing to do."""
    engine = create_engine(place.url)
    sent: list[str] = []
    worker = Queue(engine, "idle").worker(print)
    running = Thread(target=worker.run)
    running.start()
    time.sleep(1.5)
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    time.sleep(2)
    count = len(sent)
    worker.stop()
    running.join()
    engine.dispose()
    goal = _IDLE.get(place.name, _ASKING)
    return CountLine("statements of an idle worker in 2 s", place.label, 0, count, goal=goal)


def _sizes(place: Place, plan: Plan) -> Iterator[Line]:
    most = _SIZES[1] if plan.quick else _MOST.get(place.name, 1_000_000)
    sizes = [size for size in _SIZES if size <= most]
    engine = create_engine(place.url)
    queues = {f"{size:,} messages": Queue(engine, f"of {size}", visibility=600) for size in sizes}
    for size, queue in zip(sizes, queues.values(), strict=True):
        _fill(engine, queue.name, size)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(_COUNTED[engine.dialect.name]))

    def taken(queue: Queue) -> Timing:
        each = []
        for _ in range(20):
            begin = time.perf_counter()
            queue.delete(*queue.receive(10))
            each.append(time.perf_counter() - begin)
        queue.send_many([0] * 200)
        return Timing(flush=median(each))

    def counted(queue: Queue) -> Timing:
        begin = time.perf_counter()
        queue.metrics()
        return Timing(flush=time.perf_counter() - begin)

    first, *others = queues
    for question, work, goal in (
        ("receive and acknowledge 10 of", taken, _FLAT),
        ("metrics of", counted, None),
    ):
        timings = interleave(
            {name: (lambda queue=queue: work(queue)) for name, queue in queues.items()},  # type: ignore[misc] # noqa: B023
            rounds=plan.rounds_for(MEDIUM),
        )
        for name, size in zip(others, sizes[1:], strict=True):
            yield from compare(
                f"{question} {name}",
                place.label,
                size,
                timings,
                against=first,
                subject=name,
                goals={"flush": goal},
            )
    for queue in queues.values():
        queue.close()
    engine.dispose()


def _fill(engine: Engine, name: str, size: int) -> None:
    """So many messages: copies of one that was sent, made by the database."""
    with Queue(engine, name) as queue:
        (sent,) = queue.send_many([0])
    with engine.begin() as connection:
        copies = text(_COPIES.format(numbers=NUMBERS[engine.dialect.name]))
        connection.execute(copies, {"most": size - 1, "id": sent.id})


_COPIES = (
    "INSERT INTO optilock_message (tenant, queue, visible_at, sent_at, receives, body) {numbers}"
    " SELECT m.tenant, m.queue, m.visible_at, m.sent_at, 0, m.body"
    " FROM optilock_message AS m, numbers WHERE m.id = :id"
)
_COUNTED = {
    "postgresql": "VACUUM ANALYZE optilock_message",
    "sqlite": "ANALYZE",
    "mariadb": "ANALYZE TABLE optilock_message",
    "mysql": "ANALYZE TABLE optilock_message",
}
