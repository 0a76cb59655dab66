"""Writers, each of whose units is accounted for: was it stored once, never, or twice?

::

    make(engine)
    tally = write(engine, seconds=10, writers=8)          # threads; ``awrite`` has tasks
    verdict = judge(engine, tally)
    assert verdict.harm == 0, verdict

A unit adds one to the number of an account, and leaves a booking that names the unit. So a unit
that was lost has no booking, one that was doubled has two, and one that was stored by half, or that
overwrote another, leaves an account whose number is not that of its bookings.

How it does so is a *story*: a generator of functions that each get the session of a transaction,
and whose answers come back to it (:data:`STORIES`).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, String, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import (
    PreconditionFailed,
    Versioned,
    entities,
    leases,
    retry,
    retrying,
    unit_of_work,
)
from optilock.errors import CommitOutcomeUnknown
from optilock.tables.names import leases as table_of_leases

__all__ = [
    "STORIES",
    "Account",
    "Base",
    "Booking",
    "Tally",
    "Verdict",
    "add",
    "awrite",
    "judge",
    "make",
    "write",
]

Step = Callable[[Session], Any]
Story = Generator[Step, Any, None]
_ACCOUNTS = 20
#: Seconds for which a unit is tried.
DEADLINE = 30.0
LONGEST_WAIT = 0.5
#: Seconds: writers who have stored too little go on for no longer.
_LIMIT = 60.0


class Base(DeclarativeBase):
    pass


class Account(Versioned, Base):
    __tablename__ = "deployed_accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(default=0)


class Booking(Base):
    __tablename__ = "deployed_bookings"
    id: Mapped[int] = mapped_column(primary_key=True)
    unit: Mapped[str] = mapped_column(String(32))
    account: Mapped[int]


def make(engine: Engine) -> None:
    """The tables, new."""
    Base.metadata.drop_all(engine)
    table_of_leases.drop(engine, checkfirst=True)
    Base.metadata.create_all(engine)
    table_of_leases.create(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Account(id=number) for number in range(1, _ACCOUNTS + 1)])


def add(session: Session, seen: list[int]) -> None:
    """Add one to the number of account 1, and note what it was."""
    account = session.get_one(Account, 1)
    seen.append(account.number)
    account.number += 1


def _book(session: Session, unit: str, account: int) -> None:
    session.get_one(Account, account).number += 1
    session.add(Booking(unit=unit, account=account))


def _plain(unit: str, account: int) -> Story:
    yield lambda session: _book(session, unit, account)


def _by_entities(unit: str, account: int) -> Story:
    """Read in one transaction, and write in another what was read, and nothing newer."""

    def write(session: Session) -> None:
        values = {"number": number + 1}
        entities.merge(session, Account, account, values, if_match=entities.Version(version))
        session.add(Booking(unit=unit, account=account))

    seen = select(Account.number, Account.version).where(Account.id == account)
    number, version = yield lambda session: session.execute(seen).one()
    yield write


def _under_leases(unit: str, account: int) -> Story:
    """Acquire, write and release in three transactions."""

    def write(session: Session) -> None:
        leases.use(session, lease, on=[Account])
        _book(session, unit, account)

    name = leases.Name(f"account {account}")
    lease = yield lambda session: leases.acquire(session, name, 15)
    yield write
    yield lambda session: leases.release(session, lease)


STORIES: dict[str, Callable[[str, int], Story]] = {
    "units": _plain,
    "entities": _by_entities,
    "leases": _under_leases,
}


@dataclass
class Tally:
    """How units ended, as their callers know it."""

    stored: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    #: The error, and after how many seconds it came.
    refused: dict[str, tuple[str, float]] = field(default_factory=dict)
    #: Attempts beside the first ones.
    retries: int = 0
    longest: float = 0.0

    @property
    def units(self) -> int:
        return len(self.stored) + len(self.unknown) + len(self.refused)

    @property
    def given_up_early(self) -> int:
        """Units that ended in an error that another try within their deadline might have cured."""
        return sum(seconds < DEADLINE - LONGEST_WAIT for _, seconds in self.refused.values())

    def note(self, unit: str, error: Exception | None, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        if error is None:
            self.stored.add(unit)
        elif isinstance(error, CommitOutcomeUnknown):
            self.unknown.add(unit)
        else:
            self.refused[unit] = f"{type(error).__name__}: {error}", seconds

    def goes_on(self, until: float, at_least: int) -> bool:
        """Return whether it is not yet that time, or a slow machine has stored too few units."""
        left = until - time.monotonic()
        return left > 0 or (len(self.stored) < at_least and left > -_LIMIT)

    def retried(self, event: Any) -> None:
        self.retries += 1

    def add(self, other: Tally) -> None:
        """What another process has counted."""
        self.stored |= other.stored
        self.unknown |= other.unknown
        self.refused |= other.refused
        self.retries += other.retries
        self.longest = max(self.longest, other.longest)

    @property
    def policies(self) -> tuple[Any, dict[str, Any]]:
        """How a story is told again, and the options of each of its units."""
        patience: dict[str, Any] = {
            "attempts": 10_000,
            "deadline": DEADLINE,
            "wait_max": LONGEST_WAIT,
            "before_retry": self.retried,
        }
        again = retry(on=(PreconditionFailed, leases.LeaseHeld), **patience)
        return again, {"retry": retrying(**patience)}


def write(
    engine: Engine,
    seconds: float,
    *,
    story: str = "units",
    writers: int = 8,
    at_least: int = 0,
    meanwhile: Callable[[], object] = int,
) -> Tally:
    """Let threads write for so long, and until ``at_least`` so many units are stored.

    ``meanwhile`` is called beside them, and may take longer.
    """
    tally, until, over = Tally(), time.monotonic() + seconds, threading.Event()
    again, patience = tally.policies

    @unit_of_work(engine, **patience)
    def in_unit(session: Session, step: Step) -> Any:
        return step(session)

    @again
    def tell(unit: str, account: int) -> None:
        steps, answer = STORIES[story](unit, account), None
        with suppress(StopIteration):
            while True:
                answer = in_unit(steps.send(answer))

    def writer() -> None:
        while not over.is_set() or tally.goes_on(until, at_least):
            unit, began, failed = uuid4().hex, time.monotonic(), None
            try:
                tell(unit, random.randint(1, _ACCOUNTS))
            except Exception as error:
                failed = error
            tally.note(unit, failed, time.monotonic() - began)

    threads = [threading.Thread(target=writer) for _ in range(writers)]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return tally


async def awrite(
    engine: AsyncEngine,
    seconds: float,
    *,
    story: str = "units",
    writers: int = 8,
    at_least: int = 0,
    meanwhile: Callable[[], object] = int,
) -> Tally:
    """The same by tasks; ``meanwhile`` runs in a thread."""
    tally, until = Tally(), time.monotonic() + seconds
    again, patience = tally.policies
    beside = asyncio.create_task(asyncio.to_thread(meanwhile))

    @unit_of_work(engine, **patience)
    async def in_unit(session: AsyncSession, step: Step) -> Any:
        return await session.run_sync(step)

    @again
    async def tell(unit: str, account: int) -> None:
        steps, answer = STORIES[story](unit, account), None
        with suppress(StopIteration):
            while True:
                answer = await in_unit(steps.send(answer))

    async def writer() -> None:
        while not beside.done() or tally.goes_on(until, at_least):
            unit, began, failed = uuid4().hex, time.monotonic(), None
            try:
                await tell(unit, random.randint(1, _ACCOUNTS))
            except Exception as error:
                failed = error
            tally.note(unit, failed, time.monotonic() - began)

    await asyncio.gather(*(writer() for _ in range(writers)))
    await beside
    return tally


@dataclass(frozen=True)
class Verdict:
    """What the tables say."""

    units: int
    stored: int
    #: Acknowledged, and not there.
    lost: int
    #: There more than once.
    doubled: int
    #: An error had said that nothing is stored.
    stored_all_the_same: int
    #: Accounts whose number is not that of their bookings.
    uneven: int
    unknown: int
    unknown_and_stored: int
    refused: int
    given_up_early: int
    retries: int
    longest: float

    @property
    def harm(self) -> int:
        return self.lost + self.doubled + self.stored_all_the_same + self.uneven

    @property
    def early(self) -> float:
        """The share of units that were given up too early."""
        return self.given_up_early / max(1, self.units)


def judge(engine: Engine, tally: Tally) -> Verdict:
    with Session(engine) as session:
        found = Counter(session.scalars(select(Booking.unit)))
        booked = select(func.count()).where(Booking.account == Account.id).scalar_subquery()
        uneven = session.scalars(select(Account.id).where(Account.number != booked)).all()
    return Verdict(
        units=tally.units,
        stored=len(found),
        lost=len(tally.stored - found.keys()),
        doubled=sum(count > 1 for count in found.values()),
        stored_all_the_same=len(tally.refused.keys() & found.keys()),
        uneven=len(uneven),
        unknown=len(tally.unknown),
        unknown_and_stored=len(tally.unknown & found.keys()),
        refused=len(tally.refused),
        given_up_early=tally.given_up_early,
        retries=tally.retries,
        longest=round(tally.longest, 2),
    )
