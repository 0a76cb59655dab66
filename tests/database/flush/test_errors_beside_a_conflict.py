"""An error of the database while a conflict is settled is judged as it would be without one.

A full disk, a statement that takes too long, or a lost connection, is no conflict, and it would be
the same if nobody else had changed the row. Only where the database refuses values, and a row that
has missed is the reason, the conflict is what is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from optilock import (
    ConcurrencyError,
    UnitOfWork,
    client_wins,
    is_transient,
    merge_fields,
    retrying,
    unit_of_work,
)
from tests.support.models import Account, Comment, Post, Ranked


def set_up(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


#: Whatever stores "ours" as the note finds no room; what misses a row stores nothing.
DISK = {
    "postgresql": (
        "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE"
        " 'No space left on device' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON accounts FOR EACH ROW"
        " WHEN (NEW.note = 'ours') EXECUTE FUNCTION full_disk()",
    ),
    "mysql": tuple(
        f"CREATE TRIGGER full_disk_{what} BEFORE {what} ON accounts FOR EACH ROW"
        " IF NEW.note = 'ours' THEN SIGNAL SQLSTATE 'HY000'"
        " SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'Disk full'; END IF"
        for what in ("INSERT", "UPDATE")
    ),
}


@pytest.fixture
def ours(engine: Engine, tables: Any) -> Iterator[str]:
    """A note that there is no room for."""
    tables(Account)
    if engine.dialect.name == "sqlite":
        yield "long " * 20_000  # see no_room
        return
    set_up(engine, *DISK[engine.dialect.name])
    yield "ours"
    names = {"postgresql": ["full_disk ON accounts"]}
    for name in names.get(engine.dialect.name, ["full_disk_INSERT", "full_disk_UPDATE"]):
        set_up(engine, f"DROP TRIGGER {name}")


def no_room(session: Session) -> None:
    """On SQLite the file may not grow."""
    if session.get_bind().dialect.name == "sqlite":
        pages = session.scalar(text("PRAGMA page_count"))
        session.execute(text(f"PRAGMA max_page_count = {pages}"))


@pytest.mark.parametrize("count", [1, 5])
def test_a_full_disk_is_no_conflict(store, watched, other, stored, ours, count):
    """G3: met by the write of the merge, one row or many."""
    store(*(Account(id=n, owner="a", note="") for n in range(count)))
    session = watched(merge_fields)
    found = session.query(Account).all()
    for number in range(count):
        other(Account, number, owner="theirs")
    no_room(session)
    for account in found:
        account.note = ours
    with pytest.raises(DBAPIError) as caught:
        session.flush()
    session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)
    assert not is_transient(caught.value)
    assert stored(Account, 0)["owner"] == "theirs"
    assert stored(Account, 0)["note"] == ""


def test_a_full_disk_is_no_conflict_where_a_row_is_inserted_again(store, watched, gone, ours):
    """G3: the row that our side wins over a delete."""
    store(Account(id=1, owner="a"))
    session = watched(client_wins)
    account = session.get_one(Account, 1)
    gone(Account, 1)
    no_room(session)
    account.note = ours
    with pytest.raises(DBAPIError) as caught:
        session.flush()
    session.rollback()
    assert not isinstance(caught.value, ConcurrencyError)
    assert not is_transient(caught.value)


def lose(session: Session, engine: Engine) -> None:
    """The server ends the session's connection."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        number = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        order = f"SELECT pg_terminate_backend({number}, 5000)"
    else:
        number = connection.connection.driver_connection.thread_id()  # type: ignore[union-attr]
        order = f"KILL {number}"
    with engine.connect() as other:
        other.exec_driver_sql(order)


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.parametrize("act", ["update", "delete", "insert again"])
def test_a_connection_lost_while_a_merge_is_written_is_the_drivers_error(
    store, watched, other, gone, engine, act
):
    """G3: and transient, as it is anywhere before COMMIT."""
    store(Account(id=1, owner="a"))

    def settle(entry: Any) -> Any:
        lose(session, engine)
        return client_wins(entry)

    session = watched(settle)
    account = session.get_one(Account, 1)
    if act == "delete":
        session.delete(account)
    else:
        account.note = "ours"
    if act == "insert again":
        gone(Account, 1)
    else:
        other(Account, 1, owner="theirs")
    with pytest.raises(DBAPIError) as caught:
        session.flush()
    session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)
    assert is_transient(caught.value)


@pytest.mark.engines("postgresql")
def test_a_merge_that_takes_too_long_is_no_conflict(store, watched, other, engine):
    """G3: statement_timeout."""
    store(Account(id=1, owner="a"))
    set_up(
        engine,
        "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_sleep(5); RETURN NEW; END $$",
        "CREATE TRIGGER slow BEFORE UPDATE ON accounts FOR EACH ROW WHEN (NEW.note = 'ours')"
        " EXECUTE FUNCTION slow()",
    )
    session = watched(merge_fields)
    session.execute(text("SET LOCAL statement_timeout = '200ms'"))
    session.get_one(Account, 1).note = "ours"
    other(Account, 1, owner="theirs")
    with pytest.raises(DBAPIError) as caught:
        session.flush()
    session.rollback()
    set_up(engine, "DROP TRIGGER slow ON accounts")

    assert getattr(caught.value.orig, "sqlstate", None) == "57014"
    assert not is_transient(caught.value)


def test_a_key_that_is_taken_is_the_error_of_the_merge(store, watched, other, stored):
    """G3: it would be refused without the conflict as well."""
    store(Ranked(id=1, rank=1, name="a"), Ranked(id=2, rank=2, name="a"))
    session = watched(merge_fields)
    session.get_one(Ranked, 1).rank = 2
    other(Ranked, 1, name="theirs")
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()
    assert stored(Ranked, 1)["rank"] == 1


def test_a_value_refused_on_account_of_a_row_that_missed_is_a_conflict(
    store, watched, other, stored
):
    """The rank would be free, had the row that missed been written."""
    store(Ranked(id=1, rank=1, name="a"))
    session = watched()
    session.get_one(Ranked, 1).rank = 5
    other(Ranked, 1, name="theirs")
    session.add(Ranked(id=2, rank=1))
    with pytest.raises((ConcurrencyError, IntegrityError)) as caught:
        session.flush()
    session.rollback()
    assert isinstance(caught.value, ConcurrencyError)
    assert stored(Ranked, 2) is None


@pytest.mark.engines("postgresql", "mariadb")
def test_a_connection_lost_beside_a_row_that_missed_is_the_drivers_error(
    store, watched, other, engine
):
    """G3: the conflict is never told as the reason of it."""
    store(Post(id=1, title="a"))
    session = watched()
    post = session.get_one(Post, 1)
    assert post.comments == []
    other(Post, 1, title="theirs")
    post.title = "ours"
    post.comments.append(Comment(id=7, text="new"))

    @event.listens_for(session.connection(), "before_cursor_execute")
    def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO comments"):
            lose(session, engine)

    with pytest.raises(DBAPIError) as caught:
        session.flush()
    session.rollback()
    assert not isinstance(caught.value, ConcurrencyError)
    assert is_transient(caught.value)


@pytest.mark.parametrize("count", [1, 3])
def test_the_work_is_run_again_only_after_what_passes(store, other, engine, ours, count):
    """G3: a full disk is met once, and not at each attempt."""
    store(*(Account(id=n, owner="a") for n in range(count)))
    runs = []

    @unit_of_work(engine, retry=retrying(attempts=5, wait_initial=0), on_conflict=merge_fields)
    def edit(session: Session) -> None:
        runs.append(1)
        found = session.query(Account).all()
        other(Account, 0, owner=f"theirs {len(runs)}")
        no_room(session)
        for account in found:
            account.note = ours

    with pytest.raises(DBAPIError) as caught:
        edit()
    assert len(runs) == 1
    assert not isinstance(caught.value, ConcurrencyError)
    with UnitOfWork(engine) as session:
        assert session.get_one(Account, 0).note is None
