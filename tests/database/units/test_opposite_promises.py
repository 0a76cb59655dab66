"""Units that write one row and verify another, in opposite roles, do not deadlock."""

from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from optilock import UnitOfWork, Versioned, events, retrying, unit_of_work, verify
from optilock._watched.rows.locked import _places_of_tables
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of
from optilock.unit.heat import MEMORY
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
    options = {}
    if database.family == "postgresql":
        # Of a server that is late with both, the search for a deadlock may come before the end of
        # a brief wait.
        options["connect_args"] = {"options": "-c deadlock_timeout=2s"}
    engine, found = database.engine(pool_size=WRITERS, **options), []

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

    events.listen(listener, written=False)
    yield deadlocks
    events.unlisten(listener)
    engine.dispose()


def of_strategy(work, strategy):
    def run(sessions, chance):
        unit_of_work(sessions, strategy=strategy, retry=retrying(attempts=50, wait_max=0.1))(work)(
            chance
        )

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


@pytest.mark.engines("postgresql")
def test_a_unit_looks_only_briefly_at_a_row_that_it_has_missed(engine, store, other):
    """The UPDATE finds another version, and so does not come to the lock that limits its wait."""
    store(*(Account(id=n, balance=0) for n in range(2)))
    begun = []
    with engine.connect() as holder:

        @unit_of_work(sessionmaker(engine), retry=retrying(attempts=2, wait_initial=0))
        def book(session):
            begun.append(session)
            holder.rollback()
            last, first = session.get_one(Account, 1), session.get_one(Account, 0)
            if len(begun) == 1:
                other(Account, 0, balance=5)
                holder.execute(select(Account.id).where(Account.id == 0).with_for_update())
            last.balance += 1
            session.flush()
            first.balance += 1

        book()
    assert len(begun) == 2
    with sessionmaker(engine)() as session:
        assert [row.balance for row in session.scalars(select(Account).order_by(Account.id))] == [
            6,
            1,
        ]


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("written_before", [False, True])
def test_a_wait_for_a_row_crowds_only_tables_that_the_process_writes(engine, store, written_before):
    """Locks on a row that all units verify, and none writes, would make the units take turns."""

    class Base(DeclarativeBase):
        pass

    class Settings(Versioned, Base):
        __tablename__ = "settings_of_all"
        id: Mapped[int] = mapped_column(primary_key=True)
        limit: Mapped[int]

    store(Account(id=1, balance=0), Settings(id=1, limit=5))
    sessions, begun = sessionmaker(engine), []
    if written_before:
        with UnitOfWork(sessions) as session:
            session.get_one(Settings, 1).limit = 6

    with engine.connect() as administrator:
        administrator.execute(select(Settings.id).with_for_update())

        @unit_of_work(sessions, retry=retrying(attempts=2, wait_initial=0))
        def book(session):
            begun.append(session)
            if len(begun) == 2:
                administrator.rollback()
            verify(session.get_one(Settings, 1))
            session.get_one(Account, 1).balance += 1

        book()
    assert len(begun) == 2
    crowded = {table for _, table in MEMORY.crowded}
    assert crowded == {"accounts"} | ({"settings_of_all"} if written_before else set())


def test_tables_have_one_order_however_a_process_declares_them():
    def order_of_tables(names):
        metadata = MetaData()
        for name in names:
            Table(name, metadata, Column("id", Integer, primary_key=True))
        places = _places_of_tables(metadata)
        return sorted(names, key=lambda name: places[metadata.tables[name]])

    assert order_of_tables("abc") == order_of_tables("cab") == order_of_tables("bca")
