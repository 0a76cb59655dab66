"""Scopes on which units conflict are locked when they are verified."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker

from optilock import UnitOfWork, events, lock, unit_of_work, verify
from optilock.tables.names import scopes
from optilock.testing import count_statements
from optilock.unit import Adaptive
from optilock.unit.heat import MEMORY, Key
from optilock.unit.sessions import name_of
from tests.support.rooms import SEVEN, Booking, Seat

SEATS = Seat.scope(room=7)

WORDS = ("FOR UPDATE", "WHERE 0 = 1")


@pytest.fixture(autouse=True)
def cold():
    MEMORY.forget()
    yield
    MEMORY.forget()


@pytest.fixture
def tries():
    found: list[Any] = []
    events.listen(listener := lambda heard: isinstance(heard, events.Retry) and found.append(heard))
    yield found
    events.unlisten(listener)


def locking(sent):
    return [one.text for one in sent.statements if any(word in one.text for word in WORDS)]


def book(session, key, look=lambda session: verify(session, SEATS)):
    look(session)
    session.add(Seat(id=key, room=7))


def heat(sessions):
    """Another transaction books between the look and COMMIT, once."""
    met = []

    @unit_of_work(sessions)
    def work(session):
        verify(session, SEATS)
        if not met:
            met.append(1)
            with sessions.begin() as other:
                other.add(Seat(id=100, room=7))
        session.add(Seat(id=101, room=7))

    work()


def test_the_attempt_after_a_conflict_locks_the_scope_and_so_do_the_next_units(
    rooms, sessions, tries
):
    with count_statements(rooms) as sent:
        heat(sessions)
    assert len(locking(sent)) >= 1
    assert len(tries) == 1
    for key, options, locks in ((102, {}, True), (103, {"strategy": "optimistic"}, False)):
        with count_statements(rooms) as sent:
            unit_of_work(sessions, **options)(book)(key)
        assert bool(locking(sent)) is locks
    with count_statements(rooms) as sent:
        unit_of_work(sessions)(lambda session: verify(session, Seat.scope(room=8)))()
    assert not locking(sent)


def test_a_scope_that_comes_after_another_one_of_its_class_is_not_locked(rooms, sessions):
    """A unit that locked it would deadlock with one that moves both at COMMIT."""
    key = Key(name_of(rooms), scopes.name, (SEVEN.key,))
    MEMORY.conflict(key, Adaptive(), "the test says so")
    with count_statements(rooms) as sent, UnitOfWork(sessions, strategy="adaptive") as session:
        verify(session, SEVEN)
        session.add(Booking(id=200, room_id=7))
    assert not locking(sent)


def test_a_locked_scope_is_not_looked_at_again(rooms, sessions):
    """One statement more than an insert that looks at nothing, besides the move of the scope."""
    for session_key in (110, 111):  # the second time, the rows of the scopes are there
        with UnitOfWork(sessions) as session, count_statements(rooms) as sent:
            book(session, session_key, lambda session: lock(session, SEATS))
            session.flush()
    with count_statements(rooms) as sent, UnitOfWork(sessions) as session:
        lock(session, SEATS)
    ours = [one.text for one in sent.statements if "optilock_scopes" in one.text]
    assert len(ours) <= 2


@pytest.mark.needs("row-locks")
def test_units_of_other_rooms_go_on(rooms, sessions):
    for number in (7, 8):  # the rows of the scopes are there
        with UnitOfWork(sessions) as session:
            lock(session, Seat.scope(room=number))
    done = threading.Event()

    def other_room():
        with UnitOfWork(sessions) as session:
            verify(session, Seat.scope(room=8))
            session.add(Seat(id=1, room=8))
        done.set()

    with UnitOfWork(sessions) as session:
        lock(session, Seat.scope(room=7))
        thread = threading.Thread(target=other_room)
        thread.start()
        assert done.wait(60)
    thread.join()


@pytest.mark.needs("row-locks")
def test_units_of_a_hot_scope_wait_and_do_not_run_again(rooms, database, sessions, tries):
    heat(sessions)
    engine = database.engine(pool_size=4)
    made, start = sessionmaker(engine), threading.Barrier(4)

    def write(number):
        start.wait()
        for turn in range(10):
            unit_of_work(made, attempts=20)(book)(1000 + number * 10 + turn)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    before = len(tries)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert len(tries) - before <= 10
    with sessions() as session:
        assert session.query(Seat).filter(Seat.id >= 1000).count() == 40
