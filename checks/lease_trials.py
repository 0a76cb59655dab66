"""Leases between real processes: holders that are stopped, and many who want the same one.

::

    python -m checks.lease_trials stopped --trials 200 postgresql mariadb sqlite-wal
    python -m checks.lease_trials race --seconds 10 postgresql

*stopped*: a process acquires a lease and writes its row in one unit after the other; in half of the
trials it is the lease of a block, which a thread renews. It is stopped (SIGSTOP) at a moment of
chance, in the middle of a unit or a renewal too, and continued when its lease has ended; in half of
the trials somebody else becomes the holder meanwhile, as soon as he can. Each unit asks the
database for the time just before its guarded statement: none that began after the end of the lease
may be stored. Once a holder was told that the lease is lost (``on_lost=``, ``check()``, or by an
error), none of his writes may be. And nobody waits longer for the row than the lease and one
second: the server ends a transaction that a stopped process has left open, as
docs/how-to/long-work/leases.md advises.

*race*: eight processes acquire the same lease, write the row, look whether it still is as they have
written it, and release the lease, or let it end. Numbers of holders must grow.
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
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, func, insert, select
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import UnitOfWork, Versioned, is_transient, leases, watch
from optilock._watched.session.connections import separate_connection
from optilock.dialects import database_of
from optilock.dialects.at_once import lock_at_once
from optilock.errors import CommitOutcomeUnknown
from optilock.leases import Leasable, LeaseHeld, LeaseLost, LeasePolicy
from optilock.leases.names import place_of_row
from optilock.tokens.sql_functions import ServerTime
from tests.engines import Targets
from tests.engines.target import Target
from tests.support.waiting import until

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
LENGTH = 0.3
#: Seconds by which a machine may be late; who waits for a lock that is never freed waits longer.
LATE = 10.0
#: The server ends a transaction of a process that is stopped.
ENDED_BY = {
    "mysql": ("SET SESSION idle_write_transaction_timeout = 1",),
}


class Base(DeclarativeBase):
    pass


class Door(Leasable, Versioned, Base):
    __tablename__ = "trial_doors"
    __lease_policy__ = LeasePolicy(shortest=0.05, longest=60)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    holder: Mapped[int] = mapped_column(default=0)


class Holder(Base):
    """Everybody who became the holder."""

    __tablename__ = "trial_holders"
    fence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


ROW = (Door, 1)


def prepare(target: Target) -> Engine:
    engine = target.engine()
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Door(id=1))
    return engine


def start(target: Target, what: str, *more: str) -> subprocess.Popen[str]:
    given = json.dumps({"url": target.url, "on_connect": target.on_connect})
    return subprocess.Popen(
        [sys.executable, "-m", "checks.lease_trials", what, given, *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def engine_of(given: str) -> Engine:
    told = json.loads(given)
    # Not by a statement: psycopg sends it in a transaction, and a rollback would undo it.
    options = {"options": "-c idle_in_transaction_session_timeout=500"}
    connect_args: Any = options if told["url"].startswith("postgresql") else {}
    engine = create_engine(told["url"], pool_pre_ping=True, connect_args=connect_args)
    more = ENDED_BY.get(engine.dialect.name, ())
    Target("", "", "", on_connect=(*told["on_connect"], *more)).prepare(engine)
    return engine


# -- a holder that is stopped ----------------------------------------------------------------------


def holder(engine: Engine) -> None:
    """For each line: hold a lease, say so, write until it is lost and some more, and tell of it."""
    sessions = watch(sessionmaker(engine))
    for line in sys.stdin:
        told = {"late": 0, "written": 0, "lost": False, "after": 0}
        if line.strip() == "block":
            try:
                write_in_block(engine, sessions, told)
            except LeaseLost:
                told["lost"] = True
        else:
            lease = when_free(lambda: acquire(sessions))
            print("ready", flush=True)
            write_under(sessions, lease, told)
        print(json.dumps(told), flush=True)


def acquire(sessions: Any) -> leases.Lease:
    with sessions.begin() as session:
        return leases.acquire(session, ROW, LENGTH)


def when_free(take: Callable[[], T]) -> T:
    """Wait for the end of a lease whose last renewal was stored, and taken for lost."""
    taken: list[T] = []

    def is_taken() -> bool:
        with suppress(LeaseHeld):
            taken.append(take())
        return bool(taken)

    until(is_taken)
    return taken[0]


def write_under(sessions: Any, lease: leases.Lease, told: dict[str, Any]) -> None:
    for _ in range(1_000):
        with sessions() as session:
            leases.use(session, lease)
            began = write(session)
        if began is None:
            told["lost"] = True
            return
        told["written"] += 1
        told["late"] += began >= lease.until


def write_in_block(engine: Engine, sessions: Any, told: dict[str, Any]) -> None:
    heard = threading.Event()
    with ExitStack() as stack:
        lease = partial(leases.lease, engine, ROW, LENGTH, on_lost=lambda error: heard.set())
        held = when_free(lambda: stack.enter_context(lease()))
        print("ready", flush=True)
        until = time.monotonic() + 3 * LENGTH
        more, used = 3, sessions()
        held.use(used)  # before it is lost
        while more:
            knew = heard.is_set()
            with suppress(LeaseLost):
                once_used = knew and more == 1
                stored = bool(write(used)) if once_used else write_in_unit(sessions, held)
                told["after" if knew else "written"] += stored
            if heard.is_set() or time.monotonic() > until:
                with suppress(LeaseLost):
                    held.check()
                    continue
                heard.set()
                more -= knew
        used.close()


def write_in_unit(sessions: Any, held: Any) -> bool:
    """Return whether a unit under the lease is stored; one whose transaction was ended is not."""
    try:
        with UnitOfWork(sessions, parts=[held]) as session:
            session.get_one(Door, 1).holder = next(numbers)
    except ENDED as error:
        if not is_ended(error):
            raise
        return False
    return True


def write(session: Session) -> Any:
    """When the statement began, once it is stored; ``None``: it was refused, or is not stored."""
    try:
        door = session.get_one(Door, 1)
        began = session.scalar(select(ServerTime()))
        door.holder = next(numbers)
        session.commit()
    except LeaseLost:
        return None
    except ENDED as error:
        with suppress(DBAPIError):
            session.rollback()
        if not is_ended(error):
            raise
        return None
    return began


def is_ended(error: Exception) -> bool:
    """Return whether the server has ended the transaction, or its connection."""
    if not isinstance(error, DBAPIError):
        return True
    return is_transient(error) or error.connection_invalidated


#: The server has ended the transaction; at COMMIT, nobody can tell from the answer.
ENDED = (DBAPIError, PendingRollbackError, CommitOutcomeUnknown)
#: Each write stores another value.
numbers = count(1)


def stopped(target: Target, trials: int, seed: int = 1) -> dict[str, float]:
    """How often something happened in so many trials, and the longest wait for the row."""
    chance, found = random.Random(seed), dict.fromkeys(COUNTED, 0.0)
    engine, process = prepare(target), start(target, "holder")
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for number in range(trials):
            print("block" if number % 4 < 2 else "go", file=process.stdin, flush=True)
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, LENGTH * 0.8))
            process.send_signal(signal.SIGSTOP)
            began, other = time.monotonic(), None
            if number % 2:
                other = take(engine, began + LENGTH + 2 * LATE)
                waited = time.monotonic() - began
                if other is not None:
                    found["longest wait"] = max(found["longest wait"], round(waited, 2))
                    found["waited too long"] += waited > LENGTH + LATE
            time.sleep(max(0, LENGTH * 1.2 - (time.monotonic() - began)))
            process.send_signal(signal.SIGCONT)
            told = json.loads(process.stdout.readline())
            found["trials"] += 1
            found["written in time"] += told["written"]
            found["begun late and written"] += told["late"]
            found["written after it was told"] += told["after"]
            found["told that it is lost"] += told["lost"]
            found["another holder"] += other is not None
            with Session(engine) as session, session.begin():
                stored = session.get_one(Door, 1).holder
                found["written over another holder"] += other is not None and stored != -1
                if other is not None:
                    leases.release(session, other)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        engine.dispose()
    return found


COUNTED = (
    "trials",
    "written in time",
    "begun late and written",
    "told that it is lost",
    "written after it was told",
    "another holder",
    "written over another holder",
    "longest wait",
    "waited too long",
)
WRONG = (
    "begun late and written",
    "written after it was told",
    "written over another holder",
    "waited too long",
)


def take(engine: Engine, until: float) -> leases.Lease | None:
    """Become the holder and write, as soon as that is possible.

    On SQLite a stopped transaction has the lock of the whole file, and nothing ends it.
    """
    place, sessions = place_of_row(ROW, "take"), watch(sessionmaker(engine))
    with separate_connection(engine) as connection, connection.begin():
        database = database_of(connection.dialect)
        free = lock_at_once(database, connection, place.lock(), place.columns.table)
        if not free and database.locks.one_lock:
            return None
    while True:
        try:
            with sessions.begin() as session:
                lease = leases.acquire(session, ROW, 30)
                leases.use(session, lease)
                session.get_one(Door, 1).holder = -1
            return lease
        except LeaseHeld:
            assert time.monotonic() < until
            time.sleep(0.01)


# -- many who want it ------------------------------------------------------------------------------


def client(engine: Engine, seconds: float, seed: int) -> None:
    """Acquire, write, look, release, until the time is over."""
    sessions, chance = watch(sessionmaker(engine)), random.Random(seed)
    told = {"held": 0, "disturbed": 0, "older": 0, "lost": 0}
    last, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            last = hold(sessions, chance, told, last)
        except LeaseHeld:
            time.sleep(chance.uniform(0, 0.02))
        except LeaseLost:
            told["lost"] += 1
        except Exception as error:
            if not is_transient(error):
                raise
    print(json.dumps(told), flush=True)


def hold(sessions: Any, chance: random.Random, told: dict[str, int], last: int) -> int:
    with sessions.begin() as session:
        lease = leases.acquire(session, ROW, chance.choice((0.05, 0.1, 0.5)))
        session.execute(insert(Holder.__table__).values(fence=lease.fence))  # once each
    told["held"] += 1
    told["older"] += (lease.fence or 0) <= last
    mine = lease.fence or 0
    with sessions.begin() as session:
        leases.use(session, lease)
        session.get_one(Door, 1).holder = mine
    time.sleep(chance.uniform(0, 0.1))
    with sessions() as session:
        leases.use(session, lease)
        door = session.get_one(Door, 1)
        seen, door.holder = door.holder, -mine
        session.commit()  # it is stored: so the lease was in force all the time
        told["disturbed"] += seen != mine
    if chance.random() < 0.7:
        with sessions.begin() as session:
            leases.release(session, lease)
    return mine


def race(target: Target, seconds: float, clients: int = 8) -> dict[str, int]:
    """What eight processes have seen, added up."""
    engine = prepare(target)
    processes = [start(target, "client", str(seconds), str(n)) for n in range(clients)]
    told = [json.loads(one.communicate(timeout=seconds + 240)[0]) for one in processes]
    found = {name: sum(one[name] for one in told) for name in told[0]}
    with Session(engine) as session:
        found["holders"] = session.scalar(select(func.count()).select_from(Holder)) or 0
        found["last number"] = leases.look(session, ROW).fence
    engine.dispose()
    return found


# -- the command -----------------------------------------------------------------------------------


def main() -> int:
    """0 when no promise was broken, 1 otherwise."""
    what = sys.argv[1]
    if what == "holder":
        holder(engine_of(sys.argv[2]))
        return 0
    if what == "client":
        client(engine_of(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m checks.lease_trials")
    parser.add_argument("what", choices=("stopped", "race"))
    parser.add_argument("engines", nargs="+")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    asked, wrong = parser.parse_args(), 0
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="optilock-leases-") as folder:
        targets = Targets(stack)
        for name in asked.engines:
            target = targets.get(name, Path(folder))
            if what == "stopped":
                found = stopped(target, asked.trials)
                wrong += sum(found[one] for one in WRONG)
            else:
                found = race(target, asked.seconds)
                wrong += found["disturbed"] + found["older"]
                wrong += found["holders"] != found["held"]
            print(f"{name}: {found}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
