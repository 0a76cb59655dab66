"""psycopg describes the columns of optilock's own queries once."""

from __future__ import annotations

import logging

import psycopg
import pytest
from sqlalchemy import create_engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from optilock import UnitOfWork, watch
from tests.support.models import Account

pytestmark = pytest.mark.engines("postgresql")


@pytest.fixture
def new(database, store):
    """An engine that has described nothing yet."""
    store(*(Account(id=key, owner=f"owner {key}", balance=key) for key in (1, 2, 3)))
    engine = create_engine(database.url)
    engine.connect().close()
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(new):
    return watch(sessionmaker(new))


@pytest.fixture
def described(monkeypatch):
    """The queries of which psycopg has described a result."""
    asked = []
    for cursors in (psycopg.Cursor, psycopg.AsyncCursor):
        description = cursors.description.fget

        def counted(self, description=description):
            asked.append(self._query.query.decode().split()[0])
            return description(self)

        monkeypatch.setattr(cursors, "description", property(counted))
    return asked


def read(session: Session, key: int):
    return session.get_one(Account, key).owner


def test_a_row_that_is_read_by_its_key_is_described_once(sessions, described):
    for key in (1, 2, 3):
        with sessions() as session:
            assert read(session, key) == f"owner {key}"
    assert described.count("SELECT") == 1


@pytest.mark.parametrize("options", [{}, {"pipelined": True}, {"strategy": "pessimistic"}])
def test_so_it_is_in_a_unit_of_work(sessions, described, options):
    for key in (1, 2, 3):
        with UnitOfWork(sessions, **options) as session:
            assert read(session, key) == f"owner {key}"
    assert described.count("SELECT") == 1


def test_other_queries_are_described_as_ever(sessions, described):
    described.clear()
    with sessions() as session:
        for key in (1, 2, 3):
            assert session.scalar(select(Account.owner).where(Account.id == key))
    assert described == ["SELECT"] * 3


@pytest.mark.anyio
async def test_so_it_is_in_an_async_session(store, database, described):
    store(*(Account(id=key, owner=f"owner {key}", balance=key) for key in (1, 2, 3)))
    engine = create_async_engine(database.url)
    made: async_sessionmaker[AsyncSession] = watch(async_sessionmaker(engine))
    described.clear()
    for key in (1, 2, 3):
        async with made() as session:
            assert (await session.get_one(Account, key)).owner == f"owner {key}"
    assert described.count("SELECT") == 1
    await engine.dispose()


@pytest.mark.parametrize("insert", [False, True])
def test_an_applications_own_listener_is_called_each_time(sessions, new, insert):
    heard = []

    def do_execute(cursor, statement, params, context) -> None:
        heard.append(statement.split()[0])

    event.listen(new.dialect, "do_execute", do_execute, insert=insert)
    try:
        for key in (1, 2):
            with sessions() as session:
                read(session, key)
    finally:
        event.remove(new.dialect, "do_execute", do_execute)
    assert heard == ["SELECT"] * 2


def test_a_query_that_has_failed_is_described_when_it_succeeds(new, sessions, described):
    with new.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE accounts RENAME TO elsewhere")
    with sessions() as session, pytest.raises(DBAPIError):
        read(session, 1)
    with new.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO accounts")
    described.clear()
    for key in (1, 2):
        with sessions() as session:
            assert read(session, key) == f"owner {key}"
    assert described.count("SELECT") == 1


def test_logs_name_the_columns_each_time(new, caplog):
    echoing = create_engine(new.url, echo="debug")
    made = watch(sessionmaker(echoing))
    with caplog.at_level(logging.DEBUG, "sqlalchemy.engine"):
        for key in (1, 2):
            with made() as session:
                read(session, key)
    columns = [one.getMessage() for one in caplog.records if one.getMessage().startswith("Col (")]
    assert len([one for one in columns if "owner" in one]) == 2
    echoing.dispose()
