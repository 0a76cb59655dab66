"""What the option sends: nothing without it, no trip more with True, one more with a key."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import ConcurrencyError, UnitOfWork, Versioned, unit_of_work
from optilock.tables.names import commit_tokens
from optilock.testing import count_statements, wire
from optilock.unit import require_conditions
from tests.support.models import Account


class Base(DeclarativeBase):
    pass


class Counted(Versioned, Base):
    __tablename__ = "counted"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    likes: Mapped[int]


UNPREPARED = {"postgresql": {"prepare_threshold": None}, "mysql": {}}
#: Without, with True, and with a key; pipelined below.
PLAIN, PIPELINED = (4, 4, 5), (2, 2, 3)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("pipelined", [False, True])
def test_true_takes_no_trip_more_and_a_key_one(counter, database, pipelined):
    if pipelined and counter.dialect.name != "postgresql":
        pytest.skip("COMMIT goes with the last writes on psycopg only")
    counts = []
    with wire(database.url) as line:
        far = create_engine(line.url, connect_args=UNPREPARED[counter.dialect.name])
        with UnitOfWork(far, exactly_once=True) as session:  # looks for the table, once
            session.get_one(Account, 1)
        for once in (False, True, "a"):
            with (
                line.counting() as trips,
                UnitOfWork(far, exactly_once=once, pipelined=pipelined) as session,
            ):
                session.get_one(Account, 1).balance += 1
            counts.append(trips.count)
        far.dispose()
    assert tuple(counts) == (PIPELINED if pipelined else PLAIN)


def test_without_the_option_nothing_is_sent_for_it(counter, tokens):
    with count_statements(counter) as sent, UnitOfWork(counter) as session:
        session.get_one(Account, 1).balance += 1
    assert (sent.count, tokens()) == (2, {})


def test_a_unit_that_sends_nothing_stores_no_token(counter, tokens):
    with UnitOfWork(counter, exactly_once=True):
        pass
    assert tokens() == {}


@pytest.mark.engines("postgresql")
def test_the_token_of_a_pipelined_row_that_missed_is_not_stored(counter, other, tokens):
    with (
        pytest.raises(ConcurrencyError),
        UnitOfWork(counter, exactly_once=True, pipelined=True) as session,
    ):
        session.get_one(Account, 1).balance += 1
        other(Account, 1, balance=7)
    assert tokens() == {}

    @unit_of_work(counter, exactly_once=True, pipelined=True)
    def increase(session: Session) -> int:
        account = session.get_one(Account, 1)
        account.balance += 1
        if account.balance == 8:
            other(Account, 1, balance=20)
        return account.balance

    assert increase() == 21
    with counter.connect() as connection:
        assert connection.scalar(select(Account.balance)) == 21
    assert len(tokens()) == 1


@pytest.mark.parametrize("once", [True, "k"])
def test_tokens_need_no_condition_and_no_version(counter, tokens, once):
    @unit_of_work(counter, exactly_once=once, strict=True)
    def add(session: Session) -> int:
        require_conditions(session)
        session.add(Account(id=2))
        return 2

    assert add() == 2
    assert len(tokens()) == 1


@pytest.mark.engines("postgresql")
def test_an_increment_that_commutes_takes_no_trip_more(engine, tables, tokens, database):
    tables(Counted)
    commit_tokens.create(engine)
    with Session(engine) as session, session.begin():
        session.add(Counted(id=1, likes=0))
    with wire(database.url) as line:
        far = create_engine(line.url, connect_args=UNPREPARED["postgresql"])
        counts = []
        for once in (True, False, True):
            with (
                line.counting() as trips,
                UnitOfWork(far, pipelined=True, exactly_once=once) as session,
            ):
                session.get_one(Counted, 1).likes += 1
            counts.append(trips.count)
        far.dispose()
    assert counts[1:] == [2, 2]
    assert len(tokens()) == 2
