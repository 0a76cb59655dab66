"""Row locks: who has to wait for whom, and what becomes of an object that is older than its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    PreconditionFailed,
    asyncio,
    expect,
    is_transient,
    lock,
    repeatable_read,
    unit_of_work,
    verify,
    watch,
)
from optilock.preconditions import overwrite
from optilock.testing import count_statements
from tests.support.models import Account, Animal, Base, Dog, Page, Tag

#: What a connection waits for without that; on PostgreSQL it does anyway.
FOR_EVER = {
    "sqlite": "PRAGMA busy_timeout = 3000000",
    "mariadb": "SET innodb_lock_wait_timeout = 3000",
    "mysql": "SET innodb_lock_wait_timeout = 3000",
}
WAYS = {"nowait": {"nowait": True}, "timeout": {"timeout": 1}}


@pytest.fixture
def older(store, watched, other) -> Callable[..., tuple[Session, Any]]:
    """An object of a new transaction whose row has moved since it was read."""

    def older(obj: Any, **theirs: Any) -> tuple[Session, Any]:
        cls = type(obj)
        store(obj)
        session = watched()
        found = session.get_one(cls, 1)
        session.expunge(found)
        session.rollback()
        other(cls, 1, **theirs)
        session.add(found)
        return session, found

    return older


# -- what is loaded ------------------------------------------------------------------------------


def test_a_locked_row_as_it_was_loaded_costs_one_statement(account, watched, engine):
    session = watched()
    ada = session.get_one(account, 1)
    with count_statements(engine) as sent:
        assert lock(ada)
    assert sent.count == 1 + (engine.dialect.name == "sqlite")  # which takes its one lock first
    ada.balance += 1
    session.commit()
    assert (ada.balance, ada.version) == (11, 2)


def test_an_object_that_was_not_edited_is_read_again(older):
    session, ada = older(Account(id=1, owner="Ada", balance=10), balance=20)
    lock(ada)
    assert (ada.balance, ada.version) == (20, 2)
    ada.balance += 1
    session.commit()
    assert ada.balance == 21


def test_an_object_that_was_edited_is_told_with_an_entry_and_keeps_its_edits(older):
    session, ada = older(Account(id=1, owner="Ada", balance=10), balance=20)
    ada.balance = 11
    with pytest.raises(ConcurrencyError) as caught:
        lock(ada)
    [entry] = caught.value.entries
    assert (entry.action, entry.kind, entry.conflicting) == ("update", "updated", {"balance"})
    values = entry.original["balance"], entry.current["balance"], entry.database["balance"]
    assert values == (10, 11, 20)
    assert session.is_active
    assert ada.balance == 11


def test_an_object_that_is_to_be_deleted_is_edited_too(older):
    session, ada = older(Account(id=1, owner="Ada", balance=10), balance=20)
    session.delete(ada)
    with pytest.raises(ConcurrencyError) as caught:
        lock(ada)
    assert caught.value.entries[0].action == "delete"


def test_an_expired_object_is_read_with_the_lock(account, watched, other):
    session = watched()
    ada = session.get_one(account, 1)
    session.commit()
    other(account, 1, balance=20)
    lock(ada)
    assert ada.balance == 20


def test_edits_of_an_expired_object_belong_to_the_version_that_was_seen(account, watched, other):
    session = watched()
    ada = session.get_one(account, 1)
    session.commit()
    other(account, 1, balance=20)
    ada.owner = "mine"
    with pytest.raises(ConcurrencyError):
        lock(ada)


@pytest.mark.parametrize(
    ("promise", "error"),
    [(verify, ConcurrencyError), (lambda obj: expect(obj, version=1), PreconditionFailed)],
    ids=["verify", "expect"],
)
def test_a_promised_version_is_checked_although_nothing_was_edited(older, promise, error):
    _, ada = older(Account(id=1, owner="Ada"), owner="theirs")
    promise(ada)
    with pytest.raises(ConcurrencyError) as caught:
        lock(ada)
    assert type(caught.value) is error
    assert caught.value.entries[0].action == "verify"


def test_a_row_that_is_gone_is_a_conflict(account, watched, gone):
    session = watched()
    ada = session.get_one(account, 1)
    session.expunge(ada)
    session.rollback()
    gone(account, 1)
    session.add(ada)
    for options in ({}, {"skip_locked": True}):
        with pytest.raises(ConcurrencyError) as caught:
            lock(ada, **options)
        assert caught.value.entries[0].kind == "deleted"


def test_what_moves_no_version_is_read_again_too(store, watched, engine):
    store(Page(id=1, body="b", views=1))
    session = watched()
    page = session.get_one(Page, 1)
    session.expunge(page)
    session.rollback()
    with engine.begin() as connection:
        connection.execute(text("UPDATE pages SET views = 7"))
    session.add(page)
    lock(page)
    assert (page.views, page.version) == (7, 1)


def test_without_a_version_the_values_that_were_loaded_are_compared(older):
    session, tag = older(Tag(id=1, name="a"), name="theirs")
    session.expunge(tag)
    session.rollback()
    session.add(tag)
    tag.name = "mine"
    with pytest.raises(ConcurrencyError) as caught:
        lock(tag)
    assert caught.value.entries[0].database == {"id": 1, "name": "theirs"}
    session.refresh(tag)
    tag.name = "mine"
    assert lock(tag)


def test_joined_tables_are_locked_as_one(store, watched, engine):
    Base.metadata.create_all(engine, tables=[Animal.__table__, Dog.__table__])
    store(Dog(id=1, name="Rex", tricks="none"))
    mine, theirs = watched(), watched()
    dog = mine.get_one(Dog, 1)
    lock(dog)
    assert not lock(theirs.get_one(Animal, 1), skip_locked=True)
    theirs.rollback()
    dog.tricks = "roll"
    mine.commit()


def test_an_overwritten_row_is_locked_whatever_it_has_become(older):
    session, ada = older(Account(id=1, owner="Ada", balance=10), balance=20)
    ada.balance = 11
    overwrite(ada)
    assert lock(ada)
    session.commit()
    assert (ada.balance, ada.version) == (11, 3)


def test_a_row_that_has_moved_since_the_snapshot_is_a_conflict(account, engine, other):
    with pytest.raises(ConcurrencyError) as caught, repeatable_read(engine) as session:
        ada = session.get_one(account, 1)
        other(account, 1, balance=20)
        lock(ada)
    assert isinstance(caught.value.__cause__, DBAPIError)


# -- who waits -----------------------------------------------------------------------------------


@pytest.fixture
def two(account, watched):
    """Ada's account in two sessions, of which the first has locked it."""
    mine, theirs = watched(), watched()
    ours, other = mine.get_one(account, 1), theirs.get_one(account, 1)
    lock(ours)
    yield ours, other
    theirs.rollback()
    mine.rollback()


def test_a_locked_row_can_be_skipped(two):
    ours, other = two
    session = Session.object_session(other)
    assert not lock(other, skip_locked=True)
    session.rollback()
    Session.object_session(ours).commit()
    assert lock(session.get_one(Account, 1), skip_locked=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_lock_that_is_not_got_is_the_drivers_error_and_transient(two, way):
    _, other = two
    session = Session.object_session(other)
    if (limit := FOR_EVER.get(session.get_bind().dialect.name)) is not None:
        session.execute(text(limit))
    with pytest.raises(DBAPIError) as caught:
        lock(other, **WAYS[way])
    assert is_transient(caught.value)
    assert not isinstance(caught.value, ConcurrencyError)
    [note] = caught.value.__notes__
    assert "did not get Account (1,)" in note
    assert "SELECT" not in note


def test_the_time_to_wait_is_the_connections_own_again(account, watched, database):
    """Of the next lock in the same transaction, and in the next one."""
    asked = {
        "sqlite": "PRAGMA busy_timeout",
        "postgresql": "SHOW lock_timeout",
        "mariadb": "SELECT @@innodb_lock_wait_timeout",
    }[database.family]
    session = watched()
    ada = session.get_one(account, 1)
    before = session.scalar(text(asked))
    lock(ada, timeout=7)
    assert session.scalar(text(asked)) == before
    session.commit()
    assert session.scalar(text(asked)) == before


def test_nobody_else_writes_a_locked_row(two, watched):
    _, other = two
    session = Session.object_session(other)
    waits = {
        "sqlite": "PRAGMA busy_timeout = 50",
        "postgresql": "SET LOCAL lock_timeout = 50",
        "mysql": "SET innodb_lock_wait_timeout = 0",
    }
    session.execute(text(waits[session.get_bind().dialect.name]))
    other.balance = 99
    with pytest.raises(DBAPIError) as caught:
        session.flush()
    assert is_transient(caught.value)


def test_whoever_locks_waits_and_then_reads_what_the_other_has_stored(account, engine):
    """Twenty units of four threads: no update is lost, and no attempt is made in vain."""
    from concurrent.futures import ThreadPoolExecutor

    @unit_of_work(engine, attempts=200)
    def add(session: Session, _: int) -> None:
        ada = session.get_one(Account, 1)
        lock(ada)
        ada.balance += 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(20)))
    with Session(engine) as session:
        assert session.get_one(Account, 1).balance == 30


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nowait": True, "skip_locked": True}, "only one of nowait"),
        ({"nowait": True, "timeout": 1}, "only one of nowait"),
        ({"timeout": 0}, "nowait=True"),
        ({"timeout": -1}, "must be seconds"),
        ({"timeout": float("nan")}, "must be seconds"),
        ({"timeout": True}, "must be seconds"),
        ({"timeout": "1"}, "must be seconds"),
        ({"timeout": 1e9}, "at most one day"),
    ],
)
def test_options_that_say_nothing_are_refused(account, watched, options, words):
    with pytest.raises(ConfigurationError, match=words):
        lock(watched().get_one(account, 1), **options)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("call", [lock, overwrite], ids=["lock", "overwrite"])
def test_an_object_that_is_in_no_watched_session_is_refused(account, watched, engine, call):
    with pytest.raises(ConfigurationError, match="not stored yet"):
        call(Account(id=3))
    with pytest.raises(ConfigurationError, match="takes an object"):
        call(Account)
    with Session(engine) as plain:
        ada = plain.get_one(Account, 1)
        with pytest.raises(ConfigurationError, match="not watched"):
            call(ada)
    with pytest.raises(ConfigurationError, match="detached"):
        call(ada)


@pytest.mark.engines("sqlite-wal")
def test_a_connection_that_commits_each_statement_locks_nothing(account, watched_on, engine):
    session = watched_on(engine)
    session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        lock(session.get_one(Account, 1))


# -- async ---------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_async_sessions_lock_too(async_engine: AsyncEngine, async_store: Any) -> None:
    async_store(Account(id=1, owner="Ada"))
    sessions = watch(async_sessionmaker(async_engine))
    async with sessions() as mine, sessions() as theirs:
        ours, other = await mine.get_one(Account, 1), await theirs.get_one(Account, 1)
        with pytest.raises(ConfigurationError, match="await"):
            lock(ours)
        assert await asyncio.lock(mine, ours, timeout=5)
        assert not await asyncio.lock(theirs, other, skip_locked=True)
        await theirs.rollback()
        ours.balance = 1
