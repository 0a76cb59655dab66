"""A few rows of one table on PostgreSQL: one statement, which locks them in key order."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from optilock import ConcurrencyError, UnitOfWork, client_wins, watch
from optilock.testing import count_statements, interleave, wire
from tests.support.models import Account, Seat

pytestmark = pytest.mark.engines("postgresql")


def filled(session, balance=1):
    for row in session.scalars(select(Account).order_by(Account.id)):
        row.balance = balance


@pytest.mark.parametrize("count", [2, 8])
def test_they_are_one_round_trip(count, store, database):
    store(*(Account(id=n) for n in range(count)))
    with wire(database.url) as line:
        engine = create_engine(line.url)
        with watch(sessionmaker(engine))() as session:
            filled(session)
            with line.counting() as trips:
                session.flush()
            session.commit()
        engine.dispose()

    assert trips.count == 1


def test_a_row_that_misses_is_locked_before_those_behind_it(store, engine, other):
    """Who locked it after them, to look at it, could wait for one who waits for them."""
    store(*(Account(id=n) for n in range(2)))
    sessions = watch(sessionmaker(engine))
    with interleave(sessions, "ours", "theirs") as (ours, theirs):
        ours.do(filled)
        other(Account, 0, balance=5)
        theirs.do(lambda session: session.get(Account, 0, with_for_update=True))
        flush = ours.start(lambda session: session.flush()).blocked()
        theirs.do(lambda session: session.get(Account, 1, with_for_update=True))  # it is free
        theirs.rollback()
        with pytest.raises(ConcurrencyError):
            flush.result()


def test_rows_that_a_unit_has_locked_are_not_locked_again(store, engine):
    store(*(Account(id=n) for n in range(3)))
    with UnitOfWork(engine, strategy="pessimistic") as session:
        rows = [session.get(Account, n) for n in range(3)]
        for row in rows:
            row.balance = 7
        with count_statements(engine) as sent:
            session.flush()

    (one,) = sent.statements
    assert one.text.startswith("WITH")
    assert "FOR " not in one.text


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_unit_may_write_them_before_its_end(pipelined, store, engine, stored):
    store(*(Account(id=n) for n in range(3)))
    with UnitOfWork(engine, pipelined=pipelined) as session:
        filled(session)
        session.flush()
        filled(session, 2)
        session.flush()

    assert [stored(Account, n)["balance"] for n in range(3)] == [2, 2, 2]


def test_keys_of_two_columns_are_one_statement(store, watched, engine, other, stored):
    store(*(Seat(show="a", number=n, guest="") for n in range(3)))
    session = watched(client_wins)
    for seat in session.scalars(select(Seat)):
        seat.guest = "me"
    other(Seat, ("a", 1), guest="you")
    with count_statements(engine) as sent:
        session.commit()

    assert sent.statements[0].text.startswith("WITH")
    assert [stored(Seat, ("a", n))["guest"] for n in range(3)] == ["me"] * 3


def test_tables_of_a_translated_schema_are_those_that_are_written(store, engine):
    store(Account(id=0), Account(id=1))
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
        connection.execute(text("CREATE TABLE tenant.accounts (LIKE accounts INCLUDING ALL)"))
        connection.execute(text("INSERT INTO tenant.accounts SELECT * FROM accounts"))
        connection.execute(text("DROP TABLE accounts"))
    try:
        tenant = engine.execution_options(schema_translate_map={None: "tenant"})
        with watch(sessionmaker(tenant))() as session:
            filled(session, 4)
            session.commit()
        with engine.connect() as connection:
            stored = connection.execute(text("SELECT balance FROM tenant.accounts")).all()
        assert stored == [(4,), (4,)]
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA tenant CASCADE"))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.anyio
async def test_an_error_of_the_database_comes_alone(asynchronous, store, database, caplog):
    """Not with a warning for each statement behind it."""
    store(*(Account(id=n) for n in range(3)))
    caplog.set_level(logging.DEBUG, "psycopg")
    if asynchronous:
        engine = create_async_engine(database.url)
        async with watch(async_sessionmaker(engine))() as session:
            await session.run_sync(filled, 2**40)
            with pytest.raises(DBAPIError) as caught:
                await session.flush()
        await engine.dispose()
    else:
        engine = create_engine(database.url)
        with watch(sessionmaker(engine))() as session:
            filled(session, 2**40)
            with pytest.raises(DBAPIError) as caught:
                session.flush()
        engine.dispose()

    assert caught.value.orig.sqlstate == "22003"  # out of range
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.engines("sqlite")
def test_others_executemany_is_as_it_was(store, engine, watched):
    store(*(Account(id=n) for n in range(2)))
    session = watched()
    filled(session)
    session.commit()
    seen = []
    event.listen(engine, "do_executemany", lambda cursor, *rest: seen.append(cursor))
    rows = [{"id": 0, "balance": 3}, {"id": 1, "balance": 3}, {"id": 9, "balance": 3}]
    with engine.begin() as connection:
        sent = text("UPDATE accounts SET balance = :balance WHERE id = :id")
        assert connection.execute(sent, rows).rowcount == 2

    assert len(seen) == 1
