"""A conflict that the database reports at COMMIT, by every way to commit."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from optilock import ConcurrencyError, UnitOfWork, expect, verify, watch
from tests.support.models import Base, key
from tests.support.needed import two_phases
from tests.support.write_skew import Room, is_refused, skewed
from tests.support.write_skew import rooms as rooms
from tests.support.write_skew import strict as strict


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
    two_phases(strict)
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
async def test_async_sessions_say_the_same(async_engine, way, async_store):
    sessions = async_sessionmaker(async_engine)
    async_store(Room(id=1), Room(id=2))
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


# -- savepoints ------------------------------------------------------------------------------------


@pytest.fixture
def repeatable(engine: Engine, rooms: None) -> Engine:
    return engine.execution_options(isolation_level="REPEATABLE READ")


LOCK = "SELECT guests FROM refused_rooms WHERE id = 2 FOR UPDATE"


def refuse_release(engine: Engine) -> None:
    """PostgreSQL itself answers with 40001 to what is sent for RELEASE."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def release(connection, cursor, statement, parameters, context, many):
        if statement.startswith("RELEASE SAVEPOINT"):
            statement = f"{statement}; {LOCK}"
        return statement, parameters


def refuse_before_release(session: Session) -> None:
    """An application's own look, which is sent before RELEASE."""

    @event.listens_for(session, "before_commit")
    def look(session):
        if session.in_nested_transaction():
            session.execute(text(LOCK))


def beaten(session: Session, engine: Engine) -> None:
    """Room 1 is ours, room 2 is read; the other one writes room 2."""
    session.get_one(Room, 1).guests = 1
    verify(session.get_one(Room, 2))
    session.flush()
    with Session(engine) as other, other.begin():
        other.get_one(Room, 2).guests = 1


def block(session: Session, inside: Any) -> None:
    with session.begin_nested():
        inside()


def by_hand(session: Session, inside: Any) -> None:
    savepoint = session.begin_nested()
    inside()
    savepoint.commit()


def commit(session: Session, inside: Any) -> None:
    session.begin_nested()
    inside()
    session.commit()


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("end", [block, by_hand, commit])
@pytest.mark.parametrize("at_release", [True, False], ids=["at-release", "before-release"])
def test_a_savepoint_that_is_not_released_is_a_conflict(repeatable, stored, end, at_release):
    session = watch(sessionmaker(repeatable))()
    session.connection()
    if at_release:
        refuse_release(repeatable)
    else:
        refuse_before_release(session)
    with pytest.raises(ConcurrencyError) as caught:
        end(session, lambda: beaten(session, repeatable))
    assert caught.value.__cause__.orig.sqlstate == "40001"
    assert [(e.model, e.identity) for e in caught.value.entries] == [(Room, (2,))]

    session.rollback()
    session.get_one(Room, 1).guests = 7
    session.commit()
    session.close()
    assert stored(Room, 1)["guests"] == 7
    assert repeatable.pool.checkedout() == 0


@pytest.mark.engines("postgresql")
def test_after_a_refused_release_nothing_is_taken_for_stored(repeatable, stored):
    """PostgreSQL would answer the COMMIT with ROLLBACK, and no error."""
    refuse_release(repeatable)
    session = watch(sessionmaker(repeatable))()
    session.get_one(Room, 1).guests = 5
    session.flush()
    with pytest.raises(ConcurrencyError), session.begin_nested():
        beaten(session, repeatable)
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.close()
    assert stored(Room, 1)["guests"] == 0


@pytest.mark.engines("postgresql")
def test_after_a_conflict_before_the_release_the_transaction_goes_on(repeatable, stored):
    session = watch(sessionmaker(repeatable))()
    session.get_one(Room, 1).guests = 5
    session.flush()
    refuse_before_release(session)
    with pytest.raises(ConcurrencyError), session.begin_nested():
        session.get_one(Room, 1).guests = 6
        session.flush()
        with Session(repeatable) as other, other.begin():
            other.get_one(Room, 2).guests = 1
    session.commit()
    session.close()
    assert stored(Room, 1)["guests"] == 5
