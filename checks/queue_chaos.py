"""Workers that are killed, and handlers that hang or raise errors without a text.

::

    python -m checks.queue_chaos                                  # SQLite, PostgreSQL and MariaDB
    python -m checks.queue_chaos postgresql --messages 3000 --kills 60 --hangs 10 --raises 10

Each message has one effect: a row that its handler writes in the transaction that deletes it. A few
handlers write it and never return, and a few write it and raise an error whose ``str()`` raises,
at the first delivery. In the end each message has its effect once, and none is outstanding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optilock_apps import servers
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from checks.queue_races import connect, effects
from optilock.queue import Queue
from optilock.tables.queue import message_tables

DATABASES = ("sqlite", "postgresql", "mariadb")
_PROCESSES = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Plan:
    messages: int = 3_000
    workers: int = 4
    kills: int = 60
    hangs: int = 10
    raises: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """``seconds`` is the whole run, ``after`` the part of it after the last kill."""

    effects: int
    twice: int
    missing: int
    outstanding: int
    kills: int
    hung: int
    raised: int
    seconds: float
    after: float

    @property
    def good(self) -> bool:
        return not (self.twice or self.missing or self.outstanding)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def work(url: str, log: str) -> None:
    """Run a worker until the process is killed."""
    engine = connect(url)
    noted = os.open(log, os.O_APPEND | os.O_WRONLY | os.O_CREAT)

    def handle(message: Any, session: Any) -> None:
        session.execute(effects.insert().values(message=message.body["number"]))
        kind = message.body["kind"]
        if message.receives > 1 or kind == "plain":
            time.sleep(0.001)
            return
        os.write(noted, f"{kind}\n".encode())
        if kind == "hangs":
            time.sleep(3_600)
        raise Unprintable

    queue = made(engine)
    queue.worker(
        handle,
        concurrency=1 if url.startswith("sqlite") else 2,  # it has one lock
        sessions=sessionmaker(engine),
        timeout=2,
        retry=lambda receives: 0.1,
    ).run()


def made(engine: Any) -> Queue:
    return Queue(engine, "chaos", visibility=3, max_receives=None)


def run(url: str, plan: Plan) -> Outcome:
    engine = connect(url)
    message_tables().messages.metadata.create_all(engine)
    effects.create(engine, checkfirst=True)
    if url.startswith("sqlite"):
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    kinds = ["hangs"] * plan.hangs + ["raises"] * plan.raises
    kinds += ["plain"] * (plan.messages - len(kinds))
    random.Random(plan.seed).shuffle(kinds)
    with made(engine) as queue, tempfile.TemporaryDirectory() as folder:
        bodies = [{"number": number, "kind": kind} for number, kind in enumerate(kinds)]
        for start in range(0, len(bodies), 500):
            queue.send_many(bodies[start : start + 500])
        log = Path(folder, "log")
        begun = time.monotonic()
        kills, last, left = _kill_now_and_then(queue, url, str(log), plan)
        ended = time.monotonic()
        noted = log.read_text().split() if log.exists() else []
        query = select(effects.c.message, func.count()).group_by(effects.c.message)
        with engine.connect() as connection:
            counted = {row[0]: row[1] for row in connection.execute(query)}
    engine.dispose()
    return Outcome(
        effects=sum(counted.values()),
        twice=sum(count > 1 for count in counted.values()),
        missing=plan.messages - len(counted),
        outstanding=left,
        kills=kills,
        hung=noted.count("hangs"),
        raised=noted.count("raises"),
        seconds=round(ended - begun, 1),
        after=round(ended - last, 1),
    )


def _kill_now_and_then(queue: Queue, url: str, log: str, plan: Plan) -> tuple[int, float, int]:
    """Return the kills, the time of the last one, and the messages that are left long after it."""
    chance, kills = random.Random(plan.seed), 0

    def start() -> Any:
        process = _PROCESSES.Process(target=work, args=(url, log), daemon=True)
        process.start()
        return process

    running = [start() for _ in range(plan.workers)]
    last, left = time.monotonic(), plan.messages
    try:
        while kills < plan.kills or (left and time.monotonic() - last < 200):
            time.sleep(0.25)
            left = _left(queue)
            if kills < plan.kills and left < plan.messages:
                number = chance.randrange(plan.workers)
                running[number].kill()
                running[number].join()
                running[number] = start()
                kills, last = kills + 1, time.monotonic()
    finally:
        for process in running:
            process.kill()
            process.join()
    return kills, last, left


def _left(queue: Queue) -> int:
    while True:
        try:
            found = queue.metrics(exact=True)
        except DBAPIError:
            continue
        return found.waiting + found.hidden + found.dead


def main() -> int:
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m checks.queue_chaos")
    parser.add_argument("database", nargs="*", choices=[*DATABASES, []], default=[])
    for name, value in vars(usual).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = vars(parser.parse_args())
    wrong = 0
    with ExitStack() as stack:
        for name in asked.pop("database") or DATABASES:
            if name == "sqlite":
                url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/chaos.db"
            else:
                url = stack.enter_context(getattr(servers, name)()).url
            outcome = run(url, Plan(**asked))
            print(f"{name:10} {'right' if outcome.good else 'WRONG'} {outcome}", flush=True)
            wrong += not outcome.good
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
