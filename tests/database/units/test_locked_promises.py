"""What is promised of a row that the transaction has locked as it read it: nobody need look."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.orm import Session, loading, sessionmaker

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    UnitOfWork,
    client_wins,
    expect,
    lock,
    verify,
)
from optilock.preconditions import overwrite
from optilock.testing import count_statements
from tests.support.models import Account


@pytest.fixture
def sessions(engine, store):
    store(Account(id=1, balance=10), Account(id=2, balance=20))
    return sessionmaker(engine)


def pessimistic(sessions, **options):
    return UnitOfWork(sessions, strategy="pessimistic", **options)


@pytest.fixture
def moved(engine):
    """Somebody else writes a row."""

    def moved(key):
        with Session(engine) as session, session.begin():
            session.get_one(Account, key).balance += 100

    return moved


def selects(sent):
    return sum(one.text.startswith("SELECT") for one in sent.statements)


@pytest.mark.parametrize("promise", [verify, lambda row: expect(row, row.version)])
def test_a_promise_of_a_locked_row_sends_nothing(sessions, engine, promise, stored):
    def work(session):
        session.get_one(Account, 1).balance += 1
        promise(session.get_one(Account, 2))

    with count_statements(engine) as sent, pessimistic(sessions) as session:
        work(session)
    assert selects(sent) == 2
    with count_statements(engine) as sent, UnitOfWork(sessions) as session:
        work(session)
    assert selects(sent) == 3
    assert stored(Account, 1)["balance"] == 12


@pytest.mark.needs("row-locks")
def test_nobody_writes_the_row_before_the_transaction_is_over(sessions, engine, stored):
    """Another writer waits until COMMIT, so what was promised is true then."""
    written = []

    def other():
        with Session(engine) as session, session.begin():
            session.get_one(Account, 2).balance = 0
            session.flush()
            written.append(True)

    with pessimistic(sessions) as session:
        colleague = session.get_one(Account, 2)
        verify(colleague)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.3)
        assert not written
        session.get_one(Account, 1).balance = colleague.balance
    thread.join()
    assert stored(Account, 1)["balance"] == 20
    assert stored(Account, 2)["balance"] == 0


@pytest.mark.needs("row-locks")
def test_a_lock_in_a_savepoint_ends_with_it_so_the_row_is_looked_at(sessions, moved):
    with pytest.raises(ConcurrencyError) as caught, pessimistic(sessions) as session:
        with session.begin_nested() as savepoint:
            colleague = session.get_one(Account, 2)
            session.get_one(Account, 1)
            savepoint.rollback()
        verify(colleague)
        moved(2)
        session.execute(select(1))
    assert caught.value.entries[0].identity == (2,)


def test_a_row_that_was_read_without_a_lock_and_is_locked_later_is_looked_at(sessions, engine):
    """Not every way to lock a row is known; this one is sent as before."""
    with count_statements(engine) as sent, UnitOfWork(sessions) as session:
        colleague = session.get_one(Account, 2)
        lock(colleague)
        verify(colleague)
        session.get_one(Account, 1).balance += 1
    with count_statements(engine) as bare, UnitOfWork(sessions) as session:
        lock(session.get_one(Account, 2))
        session.get_one(Account, 1).balance += 1
    assert selects(sent) == selects(bare) + 1


@pytest.mark.needs("row-locks")
@pytest.mark.parametrize("promise", [verify, lambda row: expect(row, row.version)])
@pytest.mark.parametrize("listened", ["before_flush", "do_orm_execute"])
def test_what_a_listener_has_read_before_the_lock_is_older_than_the_lock(
    sessions, promise, listened, moved
):
    """The query that locks the row leaves an object as it is that was read meanwhile."""
    seen = []

    def read(*_):
        if len(seen) == 1:
            seen.append(None)
            seen.append(session.get_one(Account, 2))
            moved(2)

    with pytest.raises(ConcurrencyError) as caught, pessimistic(sessions) as session:
        seen.append(session.get_one(Account, 1))
        event.listen(session, listened, read)
        seen[0].balance += 1
        promise(session.get_one(Account, 2))  # the listener reads the row
    assert caught.value.entries[0].identity == (2,)


@pytest.mark.needs("row-locks")
def test_an_object_that_is_asked_for_by_a_key_of_another_type_may_be_older_than_the_lock(
    sessions, moved
):
    with pytest.raises(ConcurrencyError) as caught, pessimistic(sessions) as session:
        row = session.scalars(select(Account).where(Account.id == 2).distinct()).one()
        moved(2)
        assert session.get_one(Account, "2") is row
        verify(row)
        session.get_one(Account, 1).balance += 1
    assert caught.value.entries[0].identity == (2,)


@pytest.mark.needs("row-locks")
def test_what_a_cache_gives_was_not_locked(sessions, moved):
    with sessions() as session:
        frozen = session.execute(select(Account).where(Account.id == 2)).freeze()

    def from_the_cache(asked):
        merged = loading.merge_frozen_result(asked.session, asked.statement, frozen, load=False)
        return merged()

    moved(2)
    with pytest.raises(ConcurrencyError) as caught, pessimistic(sessions) as session:
        session.get_one(Account, 1).balance += 1
        session.flush()
        event.listen(session, "do_orm_execute", from_the_cache)
        row = session.get_one(Account, 2)
        event.remove(session, "do_orm_execute", from_the_cache)
        verify(row)
    assert caught.value.entries[0].identity == (2,)


@pytest.mark.needs("row-locks")
@pytest.mark.parametrize("way", ["connection", "text", "statement of its own"])
def test_what_was_sent_besides_may_have_given_the_lock_back_or_written_the_row(
    sessions, moved, way
):
    with pytest.raises(ConcurrencyError) as caught, pessimistic(sessions) as session:
        if way == "connection":
            savepoint = session.connection().begin_nested()
        else:
            session.execute(text("SAVEPOINT one"))
        colleague = session.get_one(Account, 2)
        verify(colleague)
        if way == "statement of its own":
            session.execute(text("UPDATE accounts SET version = version + 1 WHERE id = 2"))
        elif way == "connection":
            savepoint.rollback()
            moved(2)
        else:
            session.execute(text("ROLLBACK TO SAVEPOINT one"))
            moved(2)
    assert caught.value.entries[0].identity == (2,)


@pytest.mark.needs("row-locks")
def test_another_session_on_the_same_connection_may_write_the_row(sessions, engine):
    """No lock keeps it out, for it is in the same transaction."""
    with engine.connect() as connection, connection.begin(), pytest.raises(ConcurrencyError):
        bound = sessionmaker(connection, join_transaction_mode="control_fully")
        with pessimistic(bound) as session:
            verify(session.get_one(Account, 2))
            with Session(connection, join_transaction_mode="rollback_only") as other:
                other.get_one(Account, 2).balance += 1
                other.flush()


def test_a_promised_row_is_not_overwritten_whether_it_is_locked_or_not(sessions):
    with pytest.raises(ConfigurationError, match="overwrite"), pessimistic(sessions) as session:
        colleague = session.get_one(Account, 2)
        verify(colleague)
        overwrite(colleague)


def test_an_older_version_that_a_client_names_is_refused_at_once(sessions):
    with pytest.raises(PreconditionFailed), pessimistic(sessions) as session:
        colleague = session.get_one(Account, 2)
        expect(colleague, colleague.version + 1)


@pytest.mark.needs("row-locks")
def test_a_conflict_of_another_row_gives_no_lock_back(sessions, engine, moved, stored):
    """Also where COMMIT was sent along with the write that has missed."""
    for ours, pipelined in enumerate((False, True) if engine.driver == "psycopg" else (False,), 1):
        with Session(engine) as plain:
            stale = plain.get_one(Account, 1)
            plain.expunge(stale)
        written, threads = [], []

        def other(written=written):
            with Session(engine) as session, session.begin():
                session.get_one(Account, 2).balance += 1
                session.flush()
                written.append(True)

        def settle(entry, written=written, other=other, threads=threads):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(0.3)
            assert not written
            threads.append(thread)
            return client_wins(entry)

        with pessimistic(sessions, pipelined=pipelined, on_conflict=settle) as session:
            verify(session.get_one(Account, 2))
            moved(1)
            session.add(stale)
            stale.balance = ours
        threads[0].join()
        assert stored(Account, 1)["balance"] == ours
