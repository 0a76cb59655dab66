"""Threads that book the same hours, and threads that move two scopes in opposite orders."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.orm import Session, sessionmaker

from optilock import lock, retrying, unit_of_work, verify, watch
from optilock._watched.scopes import transaction
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from tests.engines import Target
from tests.support.rooms import Seat

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


@pytest.fixture
def busy(rooms: Engine, database: Target) -> Iterator[sessionmaker[Session]]:
    """Sessions at READ COMMITTED for many threads."""
    more: dict[str, Any] = {"pool_size": 8}
    if not database.url.startswith("sqlite"):
        more["isolation_level"] = "READ COMMITTED"
    if database.url.startswith("postgresql"):  # not a second for each deadlock
        more["connect_args"] = {"options": "-c deadlock_timeout=20ms"}
    engine = create_engine(database.url, **{**database.options, **more})
    yield watch(sessionmaker(engine))
    engine.dispose()


def free(session: Session, hour: int) -> bool:
    query = select(Seat.id).where(Seat.room == 7, Seat.hour == hour)
    return session.scalars(query).first() is None


def verified(session: Session, hour: int) -> bool:
    verify(session, Seat.scope(room=7))
    return free(session, hour)


def locked(session: Session, hour: int) -> bool:
    lock(session, Seat.scope(room=7))
    return free(session, hour)


def double_bookings(
    sessions: sessionmaker[Session], look: Callable[[Session, int], bool], threads: int, hours: int
) -> int:
    """Return how many hours were booked twice, after all threads wanted each of them at once."""
    begin, looked = threading.Barrier(threads), threading.Barrier(threads)

    def work(number: int) -> None:
        for hour in range(1, hours + 1):
            first = True

            # Adaptive units would lock the scope, and not meet at the second barrier.
            @unit_of_work(
                sessions,
                retry=retrying(attempts=500, wait_initial=0.001, wait_max=0.02),
                strategy="optimistic",
            )
            def book(session: Session, hour: int = hour) -> None:
                nonlocal first
                is_free = look(session, hour)
                if first and look is not locked:
                    first = False
                    looked.wait(60)  # or a fast thread would be done before the others look
                if is_free:
                    session.add(Seat(id=1000 * hour + number, room=7, hour=hour))

            begin.wait(60)
            book()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    with sessions() as session:
        booked = Counter(session.scalars(select(Seat.hour).where(Seat.hour > 0)))
    assert len(booked) == hours
    return sum(1 for count in booked.values() if count > 1)


@pytest.mark.parametrize("look", [verified, locked])
def test_no_hour_is_booked_twice(busy, look):
    assert double_bookings(busy, look, threads=3, hours=3) == 0


def test_without_a_check_hours_are_booked_twice(busy):
    assert double_bookings(busy, free, threads=3, hours=3) > 0


@pytest.mark.full
@pytest.mark.parametrize("look", [verified, locked])
def test_eight_threads_book_many_hours(busy, look, tries):
    assert double_bookings(busy, look, threads=8, hours=tries(0, 50, 200)) == 0


# -- the test of the test --------------------------------------------------------------------------


def test_if_nobody_compared_hours_would_be_booked_twice(busy, monkeypatch):
    monkeypatch.setattr(transaction.TransactionScopes, "expected", lambda self: {})
    assert double_bookings(busy, verified, threads=3, hours=3) > 0


def test_if_nobody_moved_hours_would_be_booked_twice(busy, monkeypatch):
    monkeypatch.setattr(transaction.TransactionScopes, "move", lambda *args: None)
    assert double_bookings(busy, verified, threads=3, hours=3) > 0


# -- two scopes ------------------------------------------------------------------------------------


def deadlocks(sessions: sessionmaker[Session], threads: int, rounds: int, first: int = 0) -> int:
    """Return the deadlocks of threads that move two scopes in opposite orders."""
    found = []
    begin = threading.Barrier(threads)

    def note(context: Any) -> None:
        if cause_of(context.sqlalchemy_exception) is Cause.DEADLOCK:
            found.append(context)

    def work(number: int) -> None:
        begin.wait(60)
        for round_ in range(first, first + rounds):
            order = (7, 8) if number % 2 else (8, 7)

            @unit_of_work(sessions, retry=retrying(attempts=100, wait_initial=0.001))
            def move(session: Session, round_: int = round_, order: Any = order) -> None:
                for room in order:
                    key = 1000 * round_ + 10 * number + room
                    session.add(Seat(id=10_000 + key, room=room))
                    session.flush()

            move()

    engine = sessions.kw["bind"]
    event.listen(engine, "handle_error", note)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return len(found)


def test_two_scopes_in_opposite_orders_do_not_deadlock(busy):
    assert deadlocks(busy, threads=4, rounds=5) == 0


@pytest.mark.full
def test_they_do_not_in_many_rounds(busy):
    assert deadlocks(busy, threads=8, rounds=40) == 0


@pytest.mark.engines("postgresql", "mariadb")
def test_keys_in_no_order_would_deadlock(busy, monkeypatch):
    def unsorted(moves: Any, expected: Any) -> list[tuple[bool, list[str]]]:
        keys = {*moves, *expected}
        return [(key in moves, [key]) for key in random.sample([*keys], len(keys))]

    monkeypatch.setattr(transaction, "runs", unsorted)
    monkeypatch.setattr(transaction, "_may_wait_for_commit", lambda *_: False)
    assert any(deadlocks(busy, threads=4, rounds=20, first=n) for n in range(0, 400, 20))


@pytest.mark.engines("postgresql", "mariadb")
def test_scopes_moved_in_the_order_of_the_program_would_deadlock(busy, monkeypatch):
    note = transaction.note_moves

    def note_moves(session: Session, mapper: Any, keys: Any) -> None:
        note(session, mapper, keys)
        transaction._write(session, transaction.scopes_of(session))

    monkeypatch.setattr("optilock._watched.scopes.flush.note_moves", note_moves)
    monkeypatch.setattr(transaction, "_may_wait_for_commit", lambda *_: False)
    assert any(deadlocks(busy, threads=4, rounds=10, first=n) for n in range(0, 200, 10))
