"""Units that write one row and verify another, in opposite roles, do not deadlock."""

from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from optilock import events, unit_of_work, verify
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.watched.rows.locked import _places_of_tables
from tests.support.models import Account, Note

WRITERS, UNITS, ROWS = 6, 40, 3


def roles(session, chance, rows):
    """Read the rows in one order, and return them in a random one."""
    found = [session.get_one(*row) for row in rows]
    return chance.sample(found, len(found))


def change(row):
    if isinstance(row, Account):
        row.balance += 1
    else:
        row.text = f"{int(row.text) + 1}"


def one_table(session, chance):
    keys = sorted(chance.sample(range(ROWS), 2))
    written, verified = roles(session, chance, [(Account, key) for key in keys])
    verify(verified)
    change(written)


def two_tables(session, chance):
    rows = [(kind, chance.randrange(ROWS)) for kind in (Account, Note)]
    written, verified = roles(session, chance, rows)
    verify(verified)
    change(written)


def two_flushes(session, chance):
    keys = sorted(chance.sample(range(ROWS + 1), 3))
    *written, verified = roles(session, chance, [(Account, key) for key in keys])
    verify(verified)
    for row in sorted(written, key=lambda row: row.id):
        change(row)
        session.flush()


@pytest.fixture
def deadlocks(database, store):
    """Return a function that lets threads do the work, and counts their deadlocks."""
    store(*(Account(id=n, balance=0) for n in range(ROWS + 1)))
    store(*(Note(id=n, text="0") for n in range(ROWS)))
    engine, found = database.engine(pool_size=WRITERS), []

    def listener(heard):
        error = heard.error if isinstance(heard, events.Retry) else None
        if isinstance(error, DBAPIError) and cause_of(error) is Cause.DEADLOCK:
            found.append(error)

    def deadlocks(work):
        start = threading.Barrier(WRITERS)

        def write(number):
            chance = random.Random(number)
            start.wait()
            for _ in range(UNITS):
                work(sessionmaker(engine), chance)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(found)

    events.listen(listener)
    yield deadlocks
    events.unlisten(listener)
    engine.dispose()


def of_strategy(work, strategy):
    def run(sessions, chance):
        unit_of_work(sessions, strategy=strategy, attempts=50, wait_max=0.1)(work)(chance)

    return run


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("work", [one_table, pytest.param(two_tables, marks=pytest.mark.full)])
def test_rows_of_one_flush_are_locked_in_one_order(work, deadlocks):
    assert deadlocks(of_strategy(work, "optimistic")) == 0


@pytest.mark.full
@pytest.mark.engines("postgresql")
@pytest.mark.parametrize(
    ("work", "strategy"),
    [(two_flushes, "optimistic"), (two_flushes, "adaptive"), (two_tables, "adaptive")],
)
def test_what_is_locked_out_of_order_is_waited_for_briefly(work, strategy, deadlocks):
    assert deadlocks(of_strategy(work, strategy)) == 0


def test_tables_have_one_order_however_a_process_declares_them():
    def order_of_tables(names):
        metadata = MetaData()
        for name in names:
            Table(name, metadata, Column("id", Integer, primary_key=True))
        places = _places_of_tables(metadata)
        return sorted(names, key=lambda name: places[metadata.tables[name]])

    assert order_of_tables("abc") == order_of_tables("cab") == order_of_tables("bca")
