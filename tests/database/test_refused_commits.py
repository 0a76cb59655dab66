"""A conflict that the database reports at COMMIT, by every way to commit."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, expect, watch
from tests.models import Base, key
from tests.write_skew import Room, is_refused, skewed
from tests.write_skew import rooms as rooms
from tests.write_skew import strict as strict


class Late(Base):
    """Its foreign key is looked at when the transaction commits."""

    __tablename__ = "refused_late"
    id: Mapped[int] = key()
    room_id: Mapped[int] = mapped_column(ForeignKey(Room.id, deferrable=True, initially="DEFERRED"))


def by_commit(sessions: sessionmaker[Session], engine: Engine) -> Session:
    session = sessions()
    skewed(session, engine)
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    is_refused(caught.value)
    return session


def by_factory(sessions: sessionmaker[Session], engine: Engine) -> Session:
    with pytest.raises(ConcurrencyError) as caught, sessions.begin() as session:
        skewed(session, engine)
    is_refused(caught.value)
    return session


def by_begin(sessions: sessionmaker[Session], engine: Engine) -> Session:
    session = sessions()
    with pytest.raises(ConcurrencyError) as caught, session.begin():
        skewed(session, engine)
    is_refused(caught.value)
    return session


def by_transaction(sessions: sessionmaker[Session], engine: Engine) -> Session:
    session = sessions()
    begun = session.begin()
    skewed(session, engine)
    with pytest.raises(ConcurrencyError) as caught:
        begun.commit()
    is_refused(caught.value)
    begun.rollback()
    return session


def inside_a_savepoint(sessions: sessionmaker[Session], engine: Engine) -> Session:
    """``session.commit()`` commits the transaction around the savepoint."""
    session = sessions()
    session.connection()
    session.begin_nested()
    skewed(session, engine)
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    is_refused(caught.value)
    return session


WAYS = [by_commit, by_factory, by_begin, by_transaction, inside_a_savepoint]


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("way", WAYS)
def test_a_refused_commit_is_a_conflict(strict, way, stored):
    session = way(watch(sessionmaker(strict)), strict)

    session.rollback()
    session.get_one(Room, 1).guests = 7
    session.commit()
    session.close()
    assert stored(Room, 1)["guests"] == 7


@pytest.mark.engines("postgresql")
def test_a_session_that_is_closed_at_once_gives_its_connection_back(strict, stored):
    session = by_commit(watch(sessionmaker(strict)), strict)
    session.close()

    assert strict.pool.checkedout() == 0


@pytest.mark.engines("postgresql")
def test_the_row_that_was_promised_is_told(strict):
    """It was only read; the other one wrote it."""
    session = watch(sessionmaker(strict))()
    expect(session.get_one(Room, 2), 1)
    skewed(session, strict)
    with pytest.raises(ConcurrencyError) as caught:
        session.commit()
    session.close()

    assert [(e.model, e.identity) for e in caught.value.entries] == [(Room, (2,))]


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("way", ["prepare", "commit", "begin"])
def test_in_two_phases(strict, way, stored):
    with strict.connect() as connection:
        if connection.exec_driver_sql("SHOW max_prepared_transactions").scalar() == "0":
            pytest.skip("this server prepares no transactions")
    session = watch(sessionmaker(strict, twophase=True))()
    with pytest.raises(ConcurrencyError) as caught:
        if way == "begin":
            with session.begin():
                skewed(session, strict)
        else:
            skewed(session, strict)
            getattr(session, way)()
    assert isinstance(caught.value.__cause__, DBAPIError)

    session.rollback()
    session.get_one(Room, 1).guests = 7
    session.commit()
    session.close()
    assert stored(Room, 1)["guests"] == 7


@pytest.mark.engines("postgresql")
def test_a_unit_of_work_says_the_same(strict):
    with (
        pytest.raises(ConcurrencyError) as caught,
        UnitOfWork(watch(sessionmaker(strict))) as session,
    ):
        skewed(session, strict)
    is_refused(caught.value)


@pytest.mark.engines("postgresql")
def test_a_commit_thatis_refused_for_another_reason_stays_what_it_is(engine, rooms, tables):
    tables(Late)
    session = watch(sessionmaker(engine))()
    session.add(Late(id=1, room_id=99))
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()
    with pytest.raises(IntegrityError), session.begin():
        session.add(Late(id=1, room_id=99))
    session.add(Late(id=1, room_id=1))
    session.commit()
    session.close()


def test_every_way_to_commit_stores(engine, rooms, stored):
    sessions = watch(sessionmaker(engine))
    with sessions.begin() as session:
        session.get_one(Room, 1).guests += 1
    with sessions() as session:
        with session.begin():
            session.get_one(Room, 1).guests += 1
        begun = session.begin()
        session.get_one(Room, 1).guests += 1
        begun.commit()
        with session.begin(), session.begin_nested():
            session.get_one(Room, 1).guests += 1
        session.get_one(Room, 1).guests += 1
        session.rollback()

    assert stored(Room, 1)["guests"] == 4


# -- async -----------------------------------------------------------------------------------------


async def skewed_async(session: AsyncSession, engine: Any) -> None:
    other = AsyncSession(engine)
    rooms = (await session.scalars(select(Room).order_by(Room.id))).all()
    others = (await other.scalars(select(Room).order_by(Room.id))).all()
    rooms[0].guests = 1
    await session.flush()
    others[1].guests = 1
    await other.commit()
    await other.close()


@pytest.mark.anyio
@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("way", ["commit", "factory", "begin", "transaction"])
async def test_async_sessions_say_the_same(async_engine, way):
    async with async_engine.begin() as connection:
        await connection.run_sync(Room.__table__.create)
    sessions = async_sessionmaker(async_engine)
    async with sessions.begin() as session:
        session.add_all([Room(id=1), Room(id=2)])
    strict = async_engine.execution_options(isolation_level="SERIALIZABLE")
    sessions = watch(async_sessionmaker(strict))
    with pytest.raises(ConcurrencyError) as caught:
        if way == "factory":
            async with sessions.begin() as session:
                await skewed_async(session, strict)
        session = sessions()
        if way == "begin":
            async with session.begin():
                await skewed_async(session, strict)
        if way == "transaction":
            begun = await session.begin()
            await skewed_async(session, strict)
            await begun.commit()
        await skewed_async(session, strict)
        await session.commit()
    is_refused(caught.value)
    await session.rollback()
    (await session.get_one(Room, 1)).guests = 7
    await session.commit()
    await session.close()
    await async_engine.dispose()
