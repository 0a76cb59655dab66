"""A conflict inside a savepoint is told with the newest committed rows.

The savepoint is rolled back, and the transaction goes on in its old snapshot, which shows none.
"""

from __future__ import annotations

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import sessionmaker

from optilock import ConcurrencyError, bulk_update, repeatable_read, watch
from tests.support.models import Account

pytestmark = pytest.mark.modes


@pytest.fixture
def in_a_snapshot(engine, store, watched_on, other):
    """Our session holds version 1, its snapshot version 2, and version 3 is stored."""

    def in_a_snapshot():
        store(Account(id=1, owner="first"), Account(id=2, owner="first"))
        if engine.dialect.name == "sqlite":
            session = watched_on(engine, expire_on_commit=False)
        else:
            bind = engine.execution_options(isolation_level="REPEATABLE READ")
            session = watched_on(bind, expire_on_commit=False)
        account = session.get_one(Account, 1)
        session.commit()
        other(Account, 1, owner="second")
        if engine.dialect.name == "sqlite":
            session.execute(text("BEGIN"))
        session.scalars(select(Account.owner)).all()
        return session, account

    return in_a_snapshot


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb-snapshot")
def test_the_entry_of_a_flush_in_a_savepoint_shows_the_newest_row(in_a_snapshot, other):
    session, account = in_a_snapshot()
    other(Account, 1, owner="third")
    with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
        account.owner = "mine"
    [entry] = caught.value.entries
    assert (entry.original["owner"], entry.database["owner"]) == ("first", "third")


@pytest.mark.engines("postgresql", "mariadb-snapshot")  # SQLite has one writer at a time
def test_rows_that_the_transaction_has_written_itself_are_no_conflict(in_a_snapshot, other):
    session, account = in_a_snapshot()
    other(Account, 1, owner="third")
    second = session.get_one(Account, 2)
    second.owner = "mine"
    third = Account(id=3, owner="mine")
    session.add(third)
    session.flush()
    with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
        account.owner = second.owner = third.owner = "again"
    assert [entry.identity for entry in caught.value.entries] == [(1,)]


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb-snapshot")
def test_a_row_that_is_gone_is_told_as_gone(in_a_snapshot, gone):
    session, account = in_a_snapshot()
    gone(Account, 1)
    with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
        account.owner = "mine"
    [entry] = caught.value.entries
    assert (entry.kind, entry.database) == ("deleted", None)


@pytest.mark.engines("sqlite-wal")
def test_a_savepoint_alone_holds_a_snapshot_on_sqlite(store, watched, other):
    store(Account(id=1, owner="first"))
    session = watched()
    with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
        account = session.get_one(Account, 1)
        other(Account, 1, owner="second")
        account.owner = "mine"
    [entry] = caught.value.entries
    assert entry.database["owner"] == "second"


@pytest.mark.engines("sqlite-wal", "postgresql", "mariadb-snapshot")
def test_so_does_the_conflict_of_a_unit_whose_bulk_update_is_refused(engine, store, other):
    store(Account(id=1, owner="first"))
    other(Account, 1, owner="second")
    with (
        pytest.raises(ConcurrencyError) as caught,
        repeatable_read(sessionmaker(engine)) as session,
    ):
        session.scalars(select(Account.owner)).all()
        other(Account, 1, owner="third")
        with session.begin_nested():
            bulk_update(session, Account, [{"id": 1, "version": 1, "owner": "mine"}])
    [entry] = caught.value.entries
    assert entry.database["owner"] == "third"


@pytest.mark.engines("sqlite-wal", "postgresql")
def test_the_pool_may_have_no_connection_left(database, store, other):
    store(Account(id=1, owner="first"))
    engine = database.engine(pool_size=1, max_overflow=0)
    sessions = watch(sessionmaker(engine))
    with sessions() as session:
        if database.family == "postgresql":
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        with pytest.raises(ConcurrencyError) as caught, session.begin_nested():
            account = session.get_one(Account, 1)
            other(Account, 1, owner="second")
            account.owner = "mine"
    assert caught.value.entries[0].database["owner"] == "second"
    engine.dispose()
