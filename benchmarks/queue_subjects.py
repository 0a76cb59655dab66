"""The queues that are compared: each receives and acknowledges, and sends, in its own best way.

A member of a crowd is a process with one of them. It gets a number of messages and the size of a
batch, and answers with the seconds of each batch. Without the others (the dependency group
``bench-queue``) there are our own figures only.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter, process_time
from typing import Any, Protocol

from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from optilock.queue import AsyncQueue, Draft, Queue

__all__ = ["SUBJECTS", "Crowd", "crowd", "installed"]

PAYLOAD = {"number": 1, "text": "x" * 100}
#: Seconds of one turn.
_LONGEST = 120
_PAYLOAD = b'{"number":1,"text":"' + b"x" * 100 + b'"}'


class Subject(Protocol):
    """One queue; ``marks`` gets the time after each batch."""

    marks: list[float]

    def send(self, count: int, batch: int) -> None:
        """Send messages, so many at a time."""

    def take(self, count: int, batch: int) -> None:
        """Receive and acknowledge until so many are done."""


class OneTrip:
    """``receive(done=...)``."""

    marks: list[float]

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        self._queue = Queue(self._engine, "bench", visibility=600)

    def send(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            self._queue.send_many([Draft(PAYLOAD)] * batch)
            self.marks.append(perf_counter())

    def take(self, count: int, batch: int) -> None:
        done: Any = ()
        left = count
        while left > 0:
            done = self._queue.receive(min(batch, left), done=done)
            left -= len(done)
            self.marks.append(perf_counter())
        self._queue.delete(*done)


class TwoTrips(OneTrip):
    """``receive``, and then ``delete``."""

    def take(self, count: int, batch: int) -> None:
        left = count
        while left > 0:
            found = self._queue.receive(min(batch, left))
            self._queue.delete(*found)
            left -= len(found)
            self.marks.append(perf_counter())


class Async:
    """``await receive(done=...)``."""

    marks: list[float]

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._engine = create_async_engine(url)
        self._queue = AsyncQueue(self._engine, "bench", visibility=600)

    def send(self, count: int, batch: int) -> None:
        self._runner.run(self._send(count, batch))

    async def _send(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            await self._queue.send_many([Draft(PAYLOAD)] * batch)
            self.marks.append(perf_counter())

    def take(self, count: int, batch: int) -> None:
        self._runner.run(self._take(count, batch))

    async def _take(self, count: int, batch: int) -> None:
        done: Any = ()
        left = count
        while left > 0:
            done = await self._queue.receive(min(batch, left), done=done)
            left -= len(done)
            self.marks.append(perf_counter())
        await self._queue.delete(*done)


class PgQueuer:
    """pgqueuer with psycopg: dequeue, then log the jobs as successful."""

    marks: list[float]

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        import psycopg
        from pgqueuer.db import PsycopgDriver
        from pgqueuer.queries import EntrypointExecutionParameter, Queries

        connection = await psycopg.AsyncConnection.connect(_plain(url), autocommit=True)
        self._queries: Any = Queries(PsycopgDriver(connection))
        self._entrypoints = {"bench": EntrypointExecutionParameter(concurrency_limit=0)}
        if not await self._queries.has_table("pgqueuer"):
            await self._queries.install()

    def send(self, count: int, batch: int) -> None:
        self._runner.run(self._send(count, batch))

    async def _send(self, count: int, batch: int) -> None:
        for _ in range(count // batch):
            if batch == 1:
                await self._queries.enqueue("bench", _PAYLOAD)
            else:
                await self._queries.enqueue(["bench"] * batch, [_PAYLOAD] * batch, [0] * batch)
            self.marks.append(perf_counter())

    def take(self, count: int, batch: int) -> None:
        self._runner.run(self._take(count, batch))

    async def _take(self, count: int, batch: int) -> None:
        import uuid
        from datetime import timedelta

        me, stale, left = uuid.uuid4(), timedelta(seconds=600), count
        while left > 0:
            jobs = await self._queries.dequeue(
                batch_size=min(batch, left),
                entrypoints=self._entrypoints,
                queue_manager_id=me,
                global_concurrency_limit=None,
                heartbeat_timeout=stale,
            )
            if jobs:
                await self._queries.log_jobs([(job, "successful", None) for job in jobs])
            left -= len(jobs)
            self.marks.append(perf_counter())


class Procrastinate:
    """procrastinate with psycopg: one job at a time, deleted when it is done."""

    marks: list[float]

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        import procrastinate

        self._app: Any = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=_plain(url), min_size=1, max_size=1)
        )
        await self._app.open_async()
        if not await self._app.check_connection_async():
            await self._app.schema_manager.apply_schema_async()
        self._worker = await self._app.job_manager.register_worker()

    def send(self, count: int, batch: int) -> None:
        self._runner.run(self._send(count, batch))

    async def _send(self, count: int, batch: int) -> None:
        from procrastinate.jobs import Job

        job = Job(
            queue="bench", lock=None, queueing_lock=None, task_name="bench", task_kwargs=PAYLOAD
        )
        for _ in range(count // batch):
            await self._app.job_manager.batch_defer_jobs_async([job] * batch)
            self.marks.append(perf_counter())

    def take(self, count: int, batch: int) -> None:
        self._runner.run(self._take(count))

    async def _take(self, count: int) -> None:
        from procrastinate.jobs import Status

        for _ in range(count):
            job = await self._app.job_manager.fetch_job(["bench"], self._worker)
            await self._app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=True)
            self.marks.append(perf_counter())


SUBJECTS: dict[str, Callable[[str], Subject]] = {
    "optilock": OneTrip,
    "optilock, two trips": TwoTrips,
    "optilock, async": Async,
    "pgqueuer": PgQueuer,
    "procrastinate": Procrastinate,
}


def installed(name: str) -> bool:
    return name.startswith("optilock") or find_spec(name) is not None


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class Crowd:
    """Processes, each with a connection of its own to the same queue."""

    def __init__(self, pipes: list[Any]) -> None:
        self._pipes = pipes

    def do(self, verb: str, count: int, batch: int, *, members: int = 1) -> tuple[float, float]:
        """``send`` or ``take`` so many each: seconds of the median batch; CPU of all."""
        chosen = self._pipes[:members]
        for pipe in chosen:
            pipe.send((verb, count, batch))
        answers = [_answer(pipe, verb) for pipe in chosen]
        if any(isinstance(answer, str) for answer in answers):
            raise RuntimeError(next(answer for answer in answers if isinstance(answer, str)))
        return median(chain(*(each for each, _ in answers))), sum(used for _, used in answers)


def _answer(pipe: Any, verb: str) -> Any:
    if not pipe.poll(_LONGEST):
        raise RuntimeError(f"{verb} does not end")
    return pipe.recv()


@contextmanager
def crowd(name: str, url: str, members: int) -> Iterator[Crowd]:
    """The processes of one subject; the first makes its tables."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for _ in range(members):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_member, args=(name, url, theirs), daemon=True)
            process.start()
            if not ours.poll(60) or ours.recv() != "ready":
                raise RuntimeError(f"{name} does not begin")
            pipes.append(ours)
            processes.append(process)
        yield Crowd(pipes)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _member(name: str, url: str, pipe: Connection) -> None:
    subject = SUBJECTS[name](url)
    pipe.send("ready")
    while True:
        verb, count, batch = pipe.recv()
        used, subject.marks = process_time(), [perf_counter()]
        try:
            getattr(subject, verb)(count, batch)
        except Exception as error:
            pipe.send(f"{name}: {error!r}")
            raise
        each = [after - before for before, after in pairwise(subject.marks)]
        pipe.send((each, process_time() - used))
