"""AUTOCOMMIT: an engine in that mode is refused by ``watch``, a connection by the first flush."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session
from sqlalchemy.orm import sessionmaker as maker

from optilock import ConfigurationError, Versioned, bulk_update, watch
from optilock.tokens import CompareValues

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "autocommit_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


class Compared(Versioned, Base):
    __tablename__ = "autocommit_compared"
    __version_token__ = CompareValues("n")
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


class Native(Base):
    __tablename__ = "autocommit_native"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}


class Note(Base):
    """A class without a version, over which nothing is guarded."""

    __tablename__ = "autocommit_notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


ALL = (Page, Compared, Native, Note)


@pytest.fixture
def rows(store):
    store(*(cls(id=id_, n=1) for cls in ALL for id_ in (1, 2)))


@pytest.fixture
def by_driver(database):
    """An engine whose connections are in that mode by the driver; SQLAlchemy knows nothing."""
    engine = database.engine()

    @event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        if database.family == "sqlite":
            connection.isolation_level = None
        elif database.family == "postgresql":
            connection.autocommit = True
        else:
            connection.autocommit(True)

    yield engine
    engine.dispose()


refusal = pytest.raises(ConfigurationError, match="AUTOCOMMIT")


# -- known when the sessions are watched ----------------------------------------------------------


def test_an_engine_that_was_made_in_that_mode_is_refused(database):
    engine = database.engine(**AUTOCOMMIT)
    with refusal as caught:
        watch(maker(engine))
    with refusal:
        watch(scoped_session(maker(engine)))
    assert "Give the sessions an engine without" in str(caught.value)


def test_an_engine_that_got_the_mode_as_an_option_is_refused(engine):
    with refusal:
        watch(maker(engine.execution_options(isolation_level="autocommit")))


def test_an_option_that_takes_the_mode_away_again_counts(database, rows):
    level = "SERIALIZABLE"
    engine = database.engine(**AUTOCOMMIT).execution_options(isolation_level=level)
    with watch(maker(engine))() as session:
        if database.family != "sqlite":  # there no level takes it away; the flush asks
            session.get_one(Page, 1).n = 5
            session.commit()
    engine.dispose()


def test_a_connection_in_that_mode_is_refused(engine):
    with engine.connect().execution_options(**AUTOCOMMIT) as connection, refusal:
        watch(maker(connection))


def test_an_async_engine_in_that_mode_is_refused(async_engine):
    at_once = async_engine.execution_options(**AUTOCOMMIT)
    with refusal:
        watch(async_sessionmaker(at_once))
    with refusal:
        watch(async_scoped_session(async_sessionmaker(at_once), scopefunc=lambda: 1))


@pytest.mark.engines("sqlite")
def test_a_begin_that_a_listener_sends_makes_a_transaction_all_the_same(database, rows, stored):
    """The recipe of SQLAlchemy's documentation for SQLite."""
    engine = database.engine(**AUTOCOMMIT)
    event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
    with watch(maker(engine))() as session:
        session.get_one(Page, 1).n = 5
        session.flush()
        session.rollback()
        session.get_one(Page, 2).n = 5
        session.commit()
    engine.dispose()
    assert (stored(Page, 1)["n"], stored(Page, 2)["n"]) == (1, 5)


# -- known when the connection has begun ----------------------------------------------------------


@pytest.mark.parametrize("cls", [Page, Compared, Native])
@pytest.mark.parametrize("read", [True, False], ids=["after a read", "at once"])
def test_the_first_flush_is_refused_before_anything_is_written(
    rows, by_driver, watched_on, stored, cls, read
):
    session = watched_on(by_driver, autoflush=False)
    if read:
        session.get_one(cls, 1).n = 5
        session.delete(session.get_one(cls, 2))
    session.add(cls(id=3, n=5))
    with refusal as caught:
        session.flush()
    session.close()

    assert f"{cls.__name__} would be written" in str(caught.value)
    assert (stored(cls, 1)["n"], stored(cls, 2)["n"], stored(cls, 3)) == (1, 1, None)


def test_the_transaction_of_other_connections_lives_and_edits_are_kept(rows, by_driver, watched_on):
    session = watched_on(by_driver)
    page = session.get_one(Page, 1)
    page.n = 5
    with refusal:
        session.flush()
    assert session.is_active
    assert page.n == 5
    assert page in session.dirty


def test_a_session_that_asks_for_the_mode_is_refused(rows, watched, stored):
    session = watched()
    session.connection(execution_options=AUTOCOMMIT)
    session.get_one(Page, 1).n = 5
    with refusal:
        session.flush()
    session.close()
    assert stored(Page, 1)["n"] == 1


def test_an_engine_of_one_class_is_refused_when_rows_with_a_version_are_written(
    rows, engine, stored
):
    at_once = engine.execution_options(**AUTOCOMMIT)
    sessions = watch(maker(binds={Base: engine, Page: at_once}))
    with sessions() as session:
        session.get_one(Page, 1).n = 5
        with refusal:
            session.commit()
    assert stored(Page, 1)["n"] == 1


def test_rows_without_a_version_and_reads_are_no_matter(rows, engine, stored):
    at_once = engine.execution_options(**AUTOCOMMIT)
    sessions = watch(maker(binds={Base: engine, Note: at_once}))
    with sessions() as session:
        session.get_one(Note, 1).n = 5
        session.commit()  # the two engines at once would wait for each other on SQLite
        session.get_one(Page, 1).n = 5
        session.commit()
        assert session.scalar(select(Note.n).where(Note.id == 1)) == 5
    assert (stored(Note, 1)["n"], stored(Page, 1)["n"]) == (5, 5)


def test_the_session_may_write_again_in_its_next_transaction(rows, engine, watched, stored):
    session = watched()
    session.connection(execution_options=AUTOCOMMIT)
    session.scalar(text("SELECT 1"))
    session.rollback()
    session.get_one(Page, 1).n = 5
    session.commit()
    assert stored(Page, 1)["n"] == 5


def test_many_rows_by_key_are_refused(rows, by_driver, watched_on, stored):
    session = watched_on(by_driver)
    row = {"id": 1, "version": 1, "n": 5}
    with refusal:
        bulk_update(session, Page, [row])
    with refusal:
        session.execute(update(Page), [row])
    with refusal:
        session.bulk_update_mappings(Page, [row])
    page = session.get_one(Page, 1)
    page.n = 5
    with refusal, session.no_autoflush:
        session.bulk_save_objects([page])
    session.close()
    assert stored(Page, 1)["n"] == 1


def test_an_update_of_objects_that_the_session_holds_is_refused(rows, by_driver, watched_on):
    """Their rows would be locked and looked at first."""
    session = watched_on(by_driver)
    held = session.get_one(Page, 1)
    with refusal:
        session.execute(update(Page).where(Page.n == 1).values(n=5))
    assert held.n == 1


@pytest.mark.anyio
async def test_an_async_connection_in_that_mode_is_refused(async_engine, async_store):
    async_store(Page(id=1, n=1))
    async with watch(async_sessionmaker(async_engine))() as session:
        await session.connection(execution_options=AUTOCOMMIT)
        (await session.get_one(Page, 1)).n = 5
        with refusal:
            await session.flush()
    async with AsyncSession(async_engine) as session:
        assert await session.scalar(select(Page.n)) == 1


def test_after_a_commit_it_is_refused_again(by_driver, rows, stored):
    """The connection of the transaction before is closed by then."""
    with watch(maker(by_driver))() as session:
        page = session.get_one(Page, 1)
        session.commit()
        page.n = 5
        with refusal:
            session.commit()
        session.rollback()
    assert stored(Page, 1)["n"] == 1
