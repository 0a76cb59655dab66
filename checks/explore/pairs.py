"""Pairs of units: wrong ones with the anomaly that they have, and right ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Engine, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from checks.explore.rows import Booking, Counter, Guarded, Likes, Room, Rows, Slot
from optilock import Isolation, UnitOfWork, merge_fields, unit_of_work, verify, watch

Unit: TypeAlias = Callable[[], Any]


@dataclass(frozen=True)
class Pair:
    """Units, and the rows that they begin with."""

    name: str
    rows: Rows
    units: Callable[[Any], tuple[Unit, Unit]]
    #: The anomaly that must be found; None: nothing may be found.
    anomaly: str | None = None
    #: Families of engines on which it does not happen.
    spared: tuple[str, ...] = ()
    #: The level of all its transactions, where it is not the engine's own.
    level: str | None = None
    #: Engines that cannot run it.
    without: tuple[str, ...] = ()

    def sessions(self, engine: Engine) -> Any:
        options = {} if self.level is None else {"isolation_level": self.level}
        return sessionmaker(engine.execution_options(**options))


COUNTERS: Rows = {Counter: [{"id": 1, "n": 1}, {"id": 2, "n": 1}]}
GUARDED: Rows = {Guarded: [{"id": n, "n": 1, "note": 0} for n in (1, 2)]}
LIKES: Rows = {Likes: [{"id": 1, "n": 0, "note": 0}]}


# -- wrong -----------------------------------------------------------------------------------------


def twice(unit: Callable[[Any], Unit]) -> Callable[[Any], tuple[Unit, Unit]]:
    return lambda sessions: (unit(sessions), unit(sessions))


def increment(sessions: Any, cls: Any = Counter) -> Unit:
    def increment() -> None:
        with sessions.begin() as session:
            session.get_one(cls, 1).n += 1

    return increment


def go_off_call(sessions: Any, number: int) -> Unit:
    """A doctor goes off call if another one is on call."""

    def go_off_call() -> bool:
        with sessions.begin() as session:
            on_call = session.scalars(select(Counter).where(Counter.n == 1)).all()
            if len(on_call) < 2:
                return False
            session.get_one(Counter, number).n = 0
            return True

    return go_off_call


def doctors(sessions: Any) -> tuple[Unit, Unit]:
    return go_off_call(sessions, 1), go_off_call(sessions, 2)


def book(sessions: Any) -> Unit:
    def book() -> bool:
        with sessions.begin() as session:
            taken = select(func.count()).where(Booking.room_id == 1, Booking.hour == 9)
            if session.scalar(taken):
                return False
            session.add(Booking(room_id=1, hour=9))
            return True

    return book


def transfer(sessions: Any, first: int = 1, second: int = 2) -> Unit:
    def transfer() -> None:
        with sessions.begin() as session:
            session.execute(update(Counter).where(Counter.id == first).values(n=Counter.n - 1))
            session.execute(update(Counter).where(Counter.id == second).values(n=Counter.n + 1))

    return transfer


def audit(sessions: Any) -> Unit:
    def audit() -> int:
        with sessions.begin() as session:
            return sum(session.scalar(select(Counter.n).where(Counter.id == n)) for n in (1, 2))

    return audit


def pay_once(sessions: Any) -> Unit:
    """The bill is paid twice: what was read is not locked, and the payment is added."""

    def pay_once() -> bool:
        with sessions.begin() as session:
            if session.scalar(select(Counter.n).where(Counter.id == 1)) > 1:
                return False
            session.execute(update(Counter).where(Counter.id == 1).values(n=Counter.n + 10))
            return True

    return pay_once


def in_two_transactions(sessions: Any) -> Unit:
    def in_two_transactions() -> None:
        with sessions() as session:
            n = session.get_one(Counter, 1).n
        with sessions.begin() as session:
            session.execute(update(Counter).where(Counter.id == 1).values(n=n + 1))

    return in_two_transactions


BOOKINGS: Rows = {Room: [{"id": 1}], Booking: []}

WRONG = [
    Pair("increments", COUNTERS, twice(increment), "lost update"),
    Pair("doctors", COUNTERS, doctors, "write skew"),
    Pair("booking", BOOKINGS, twice(book), "phantom"),
    Pair(
        "audit",
        COUNTERS,
        lambda s: (transfer(s), audit(s)),
        "read skew",
        spared=("mysql", "mariadb"),
    ),
    Pair("payments", COUNTERS, twice(pay_once), "double apply"),
    Pair("two transactions", COUNTERS, twice(in_two_transactions), "lost update"),
]


# -- right -----------------------------------------------------------------------------------------


def guarded_increment(sessions: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def guarded_increment(session: Session) -> int:
        row = session.get_one(Guarded, 1)
        row.n += 1
        return row.n

    return guarded_increment


def verified(sessions: Any, number: int) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def verified(session: Session) -> bool:
        on_call = session.scalars(select(Guarded).where(Guarded.n == 1)).all()
        if len(on_call) < 2:
            return False
        for row in on_call:
            if row.id != number:
                verify(row)
        session.get_one(Guarded, number).n = 0
        return True

    return verified


def strict(sessions: Any, number: int) -> Unit:
    @unit_of_work(sessions, isolation=Isolation.SERIALIZABLE, attempts=4)
    def strict(session: Session) -> bool:
        on_call = session.scalars(select(Counter).where(Counter.n == 1)).all()
        if len(on_call) < 2:
            return False
        session.get_one(Counter, number).n = 0
        return True

    return strict


def relative(sessions: Any) -> Unit:
    def relative() -> None:
        with sessions.begin() as session:
            session.execute(update(Counter).where(Counter.id == 1).values(n=Counter.n + 1))

    return relative


def locked(sessions: Any) -> Unit:
    def locked() -> None:
        with sessions.begin() as session:
            session.get_one(Counter, 1, with_for_update=True).n += 1

    return locked


def like(sessions: Any) -> Unit:
    @unit_of_work(watch(sessions), attempts=4)
    def like(session: Session) -> None:
        session.get_one(Likes, 1).n += 1

    return like


def book_locked(sessions: Any) -> Unit:
    """The room's row is locked first."""

    def book_locked() -> bool:
        with sessions.begin() as session:
            session.get_one(Room, 1, with_for_update=True)
            taken = select(Booking.id).where(Booking.room_id == 1, Booking.hour == 9)
            if session.scalar(taken.with_for_update()):
                return False
            session.add(Booking(room_id=1, hour=9))
            return True

    return book_locked


def take_slot(sessions: Any) -> Unit:
    def take_slot() -> bool:
        try:
            with sessions.begin() as session:
                session.add(Slot(room=1, hour=9))
        except IntegrityError:
            return False
        return True

    return take_slot


def increment_of(sessions: Any, number: int) -> Unit:
    def increment_of() -> None:
        with sessions.begin() as session:
            session.get_one(Counter, number).n += 1

    return increment_of


def two_kinds(sessions: Any) -> tuple[Unit, Unit]:
    """One writes the number, the other one the note."""
    maker = watch(sessions)

    @unit_of_work(maker, attempts=4)
    def number(session: Session) -> None:
        session.get_one(Guarded, 1).n += 1

    def note() -> None:
        with UnitOfWork(maker, on_conflict=merge_fields) as session:
            session.get_one(Guarded, 1).note = 7

    return number, note


RIGHT = [
    Pair("guarded increments", GUARDED, twice(guarded_increment)),
    Pair("verified doctors", GUARDED, lambda s: (verified(s, 1), verified(s, 2))),
    Pair("serializable doctors", COUNTERS, lambda s: (strict(s, 1), strict(s, 2))),
    Pair("relative increments", COUNTERS, twice(relative)),
    Pair("locked increments", COUNTERS, twice(locked), without=("sqlite",)),
    Pair(
        "audit of a snapshot",
        COUNTERS,
        lambda s: (transfer(s), audit(s)),
        level="REPEATABLE READ",
        without=("sqlite",),
    ),
    Pair("likes", LIKES, twice(like)),
    Pair("locked booking", BOOKINGS, twice(book_locked), without=("sqlite",)),
    Pair("slots", {Slot: []}, twice(take_slot)),
    Pair("other rows", COUNTERS, lambda s: (increment_of(s, 1), increment_of(s, 2))),
    Pair("transfer and transfer", COUNTERS, twice(transfer)),
    Pair("likes and increment", LIKES | COUNTERS, lambda s: (like(s), increment(s))),
    Pair("guarded and other row", GUARDED, lambda s: (guarded_increment(s), verified(s, 2))),
]
