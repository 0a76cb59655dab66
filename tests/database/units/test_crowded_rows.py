"""Many writers of the same rows: nothing is lost, nobody starves, nobody deadlocks twice."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from optilock import events, unit_of_work
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.testing import count_statements
from optilock.unit import Adaptive
from optilock.unit.heat import MEMORY
from optilock.unit.reading import Reading
from tests.support.models import Account
from tests.support.waiting import (
    LIMIT,
    until_a_lock_is_waited_for,
    until_no_lock_is_waited_for,
)

WRITERS, SECONDS = 16, 2.0
#: How often each of four writers does it.
TIMES = 200


@pytest.fixture
def crowd(database, store, stored):
    """Let ``work(number)`` be done by ``writers`` at once; gives how often each one did it.

    For so many seconds, or each so many ``times``.
    """
    engines = []

    def crowd(work_of, writers=WRITERS, seconds=SECONDS, times=None):
        store(Account(id=1, balance=0), Account(id=2, balance=0))
        engine = database.engine(pool_size=writers, max_overflow=0, pool_timeout=120)
        engines.append(engine)
        sessions, done, failed = sessionmaker(engine), Counter(), []
        start = threading.Barrier(writers)

        def write(number):
            work = work_of(sessions, number)
            start.wait()
            until = time.monotonic() + seconds
            while time.monotonic() < until if times is None else done[number] < times:
                try:
                    work()
                except BaseException as error:
                    failed.append(error)
                    raise
                done[number] += 1

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        return [done[number] for number in range(writers)]

    yield crowd
    for engine in engines:
        engine.dispose()


@pytest.mark.needs("row-locks")
@pytest.mark.full
def test_sixteen_writers_of_one_row_get_their_turns(crowd, stored, retried):
    """Whoever has missed once locks the row, and queues as the others do."""

    def work_of(sessions, number):
        @unit_of_work(sessions, strategy="adaptive", attempts=4)
        def work(session):
            session.get_one(Account, 1).balance += 1

        return work

    done = crowd(work_of)
    assert stored(Account, 1)["balance"] == sum(done)
    assert min(done) >= 1
    assert len(retried) <= WRITERS + sum(done) / 10


@pytest.mark.needs("row-locks")
@pytest.mark.full
def test_two_hot_rows_in_opposite_orders_deadlock_no_more_once_they_have(crowd, stored, retried):
    units, before = [], []  # what was done, and how much of it before each deadlock

    def work_of(sessions, number):
        order = (1, 2) if number % 2 else (2, 1)

        @unit_of_work(sessions, strategy="adaptive", attempts=10)
        def work(session):
            for key in order:
                session.get_one(Account, key).balance += 1
                session.execute(select(1))  # the others lock a row

        def counted():
            work()
            units.append(number)

        return counted

    def deadlocked(heard):
        error = getattr(heard, "error", None)
        if isinstance(error, DBAPIError) and cause_of(error) is Cause.DEADLOCK:
            before.append(len(units))

    events.listen(deadlocked, written=False)
    try:
        done = crowd(work_of, writers=4, times=TIMES)
    finally:
        events.unlisten(deadlocked)
    assert stored(Account, 1)["balance"] == stored(Account, 2)["balance"] == sum(done)
    assert len(before) <= 20  # until the table is crowded, and victims of both orders are known
    assert not [number for number in before if number > 2 * TIMES]


@pytest.fixture
def patient(database, engine):
    """An engine on which PostgreSQL looks for no deadlock; MariaDB looks when one begins."""
    if database.family != "postgresql":
        yield engine
        return
    made = database.engine(connect_args={"options": "-c deadlock_timeout=60s"})
    yield made
    made.dispose()


@pytest.mark.needs("row-locks")
def test_rows_that_have_deadlocked_are_locked_together_in_the_order_of_their_keys(
    engine, patient, store, stored
):
    """Both wait for each other, and both as a victim: who reads one row later locks both."""
    store(Account(id=1), Account(id=2), Account(id=3))
    sessions = sessionmaker(engine)
    for key in (1, 2):
        heat(sessions, key)
    for victim in ((1, 2), (2, 1)):
        deadlock(engine, patient, victim)
    assert stored(Account, 1)["balance"] == stored(Account, 2)["balance"] == 4

    @unit_of_work(sessions, strategy="adaptive")
    def later(session):
        session.get_one(Account, 2).balance += 1
        session.get_one(Account, 1).balance += 1

    @unit_of_work(sessions, strategy="adaptive")
    def alone(session):
        session.get_one(Account, 2).balance += 1

    with count_statements(engine) as sent:
        later()
    (first, *others) = [one.text for one in sent.statements if "UPDATE" in one.text]
    assert "IN (" in first
    assert "ORDER BY accounts.id" in first
    assert all(text.startswith("UPDATE") for text in others)
    for _ in range(8):
        alone()  # does not need the other row
    with count_statements(engine) as sent:
        alone()
    assert not [one.text for one in sent.statements if "ORDER BY" in one.text]


def deadlock(engine, patient, victim):
    """Two units lock the rows 1 and 2 in opposite orders; the one of this order is the victim.

    It is the one that asks when the other one waits already.
    """
    met, other_waits, attempts = threading.Barrier(2, timeout=LIMIT), threading.Event(), Counter()

    def work_of(order):
        @unit_of_work(
            sessionmaker(engine if order == victim else patient), strategy="adaptive", attempts=3
        )
        def work(session):
            attempts[order] += 1
            for key in order:
                session.get_one(Account, key).balance += 1
                if attempts[order] == 1 and key == order[0]:
                    met.wait()
                    assert order != victim or other_waits.wait(LIMIT)

        return work

    threads = [threading.Thread(target=work_of(order)) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    until_a_lock_is_waited_for(engine)
    other_waits.set()
    for thread in threads:
        thread.join()
    until_no_lock_is_waited_for(engine)
    assert attempts == {victim: 2, victim[::-1]: 1}


def heat(sessions, key):
    with sessions() as session:
        place = Reading(session, None, MEMORY).key_of(session, Account.__mapper__, (key,))
    MEMORY.conflict(place, Adaptive(), "the test says so")
    MEMORY.rows[place].left = 1_000_000
