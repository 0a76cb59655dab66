"""Workers that are killed while they work: nothing is lost, and nobody has what another one has.

::

    python -m checks.queue_races postgresql --messages 10000 --workers 8 --kills 40

Worker processes receive, dawdle now and then until their time is over, and acknowledge; meanwhile
one after the other is killed with SIGKILL and another one begins. Each writes what it has seen into
a file of its own, which a killed process leaves behind. From the files:

``lost``     messages that nobody has acknowledged
``twice``    messages that two have acknowledged
``shared``   deliveries that began before the one before was over
``stale``    acknowledgements with a receipt that was not that of the last delivery
``effects``  what was written in transactions that delete, more or fewer than messages
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from optilock_apps import servers
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from optilock.queue import MessageNotFound, Queue, ReceiptExpired
from optilock.tables.queue import message_tables

ROOT = Path(__file__).parents[1]
VISIBILITY = 1.5
effects = Table(
    "race_effects",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("message", BigInteger, index=True),
)


@dataclass
class Outcome:
    messages: int
    kills: int = 0
    seconds: float = 0.0
    deliveries: int = 0
    lost: int = 0
    twice: int = 0
    shared: int = 0
    stale: int = 0
    late: int = 0
    effects: int = 0
    #: What has come out of the database besides: error -> how often.
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.shared or self.stale or self.effects)


def connect(url: str) -> Engine:
    options = {"connect_args": {"timeout": 30}} if url.startswith("sqlite") else {}
    return create_engine(url, **options)


# -- a worker --------------------------------------------------------------------------------------


def work(url: str, log: str, seed: str) -> None:
    chance = random.Random(seed)
    engine = connect(url)
    queue = Queue(engine, "race", visibility=VISIBILITY, max_receives=None)
    with open(log, "ab", buffering=0) as file:

        def note(**event: Any) -> None:
            file.write(json.dumps(event).encode() + b"\n")

        while True:
            try:
                _work_once(queue, chance, note)
            except DBAPIError as error:
                note(error=f"{type(error.orig).__name__} {error.orig.args[:1]}"[:80])
                time.sleep(0.05)


def _work_once(queue: Queue, chance: random.Random, note: Any) -> None:
    found = queue.receive(chance.choice((1, 5, 20)), wait=1)
    for message in found:
        note(got=message.id, n=message.receives, until=message.visible_at.isoformat())
    if chance.random() < 0.03:
        time.sleep(VISIBILITY * chance.uniform(1.1, 5))  # stopped for longer than its time
    time.sleep(chance.random() * 0.01)
    if chance.random() < 0.3:  # effects in the transaction that deletes
        for message in found:
            _with_effects(queue, message, note)
        return
    for message in found:
        try:
            queue.delete(message)
            note(done=message.id, n=message.receives)
        except (ReceiptExpired, MessageNotFound):
            note(late=message.id)


def _with_effects(queue: Queue, message: Any, note: Any) -> None:
    try:
        with sessionmaker(queue.engine).begin() as session:
            queue.delete(message, session=session)
            session.execute(effects.insert().values(message=message.id))
        note(done=message.id, n=message.receives, effect=True)
    except (ReceiptExpired, MessageNotFound):
        note(late=message.id)


# -- the race --------------------------------------------------------------------------------------


def race(url: str, *, messages: int, workers: int, kills: int, seed: int = 0) -> Outcome:
    engine = connect(url)
    message_tables().messages.metadata.create_all(engine)
    effects.create(engine, checkfirst=True)
    queue = Queue(engine, "race", visibility=VISIBILITY)
    ids: set[int] = set()
    for start in range(0, messages, 500):
        some = queue.send_many(range(start, min(messages, start + 500)))
        ids |= {one.id for one in some}
    outcome = Outcome(messages)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _kill_now_and_then(queue, url, Path(folder), workers, kills, outcome, seed)
        outcome.seconds = time.monotonic() - begin
        _judge(Path(folder), ids, queue, outcome)
    queue.close()
    engine.dispose()
    return outcome


def _kill_now_and_then(
    queue: Queue, url: str, folder: Path, workers: int, kills: int, outcome: Outcome, seed: int
) -> None:
    chance = random.Random(seed)
    started = 0

    def start() -> subprocess.Popen[bytes]:
        nonlocal started
        started += 1
        words = ["--work", url, str(folder / f"{started}.log"), f"{seed} {started}"]
        path = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen([sys.executable, "-m", "checks.queue_races", *words], env=path)

    running = [start() for _ in range(workers)]
    try:
        while (left := _left(queue)) or outcome.kills < kills:
            time.sleep(0.15 if left else 0)
            if outcome.kills < kills and (left < outcome.messages or not left):
                number = chance.randrange(workers)
                running[number].send_signal(signal.SIGKILL)
                running[number].wait()
                running[number] = start()
                outcome.kills += 1
    finally:
        for process in running:
            process.kill()
            process.wait()


def _left(queue: Queue) -> int:
    while True:
        try:
            found = queue.metrics(exact=True)
        except DBAPIError:
            continue
        return found.waiting + found.hidden


def _judge(folder: Path, ids: set[int], queue: Queue, outcome: Outcome) -> None:
    got: dict[int, list[tuple[int, datetime]]] = defaultdict(list)
    done: dict[int, list[int]] = defaultdict(list)
    by_effect: set[int] = set()
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if "got" in event:
                until = datetime.fromisoformat(event["until"])
                got[event["got"]].append((event["n"], until))
            elif "done" in event:
                done[event["done"]].append(event["n"])
                by_effect |= {event["done"]} if event.get("effect") else set()
            elif "late" in event:
                outcome.late += 1
            else:
                outcome.errors[event["error"]] = outcome.errors.get(event["error"], 0) + 1
    outcome.deliveries = sum(map(len, got.values()))
    # A worker may be killed between its COMMIT and its note: such a message is gone, and its
    # effect is there, or it was deleted; but it was delivered.
    written = _effects(queue.engine)
    outcome.lost = len({one for one in ids if one not in done and one not in got})
    outcome.lost += _left(queue)
    outcome.twice = sum(len(n) > 1 for n in done.values())
    outcome.twice += sum(count > 1 for count in written.values())
    outcome.twice += len({one for one in written if one in done and one not in by_effect})
    outcome.effects = len(by_effect - set(written))
    for number, deliveries in got.items():
        deliveries.sort()
        for (_, until), (_, after) in pairwise(deliveries):
            # SQLite keeps three digits.
            began = after - timedelta(seconds=VISIBILITY) + timedelta(milliseconds=1)
            outcome.shared += began < until
        last = deliveries[-1][0]
        outcome.stale += any(n < last for n in done.get(number, ()))


def _effects(engine: Engine) -> dict[int, int]:
    with engine.connect() as connection:
        found = select(effects.c.message, func.count()).group_by(effects.c.message)
        return {row[0]: row[1] for row in connection.execute(found)}


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description="Kill workers of a queue while they work.")
    parser.add_argument("database", choices=["sqlite", "postgresql", "mariadb"])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with ExitStack() as stack:
        if asked.database == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = f"sqlite:///{folder}/race.db"
        else:
            url = stack.enter_context(getattr(servers, asked.database)()).url
        outcome = race(
            url,
            messages=asked.messages,
            workers=asked.workers,
            kills=asked.kills,
            seed=asked.seed,
        )
    print(outcome)
    return int(not outcome.good)


if __name__ == "__main__":
    sys.exit(main())
