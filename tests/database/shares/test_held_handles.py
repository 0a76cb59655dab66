"""``with opened(...)``: heartbeats while the block runs; its owner is told when the handle is lost.

How it is renewed, and what leaves the block, is one mechanism for handles and leases
(``optilock/leases/renewal``): ``tests/database/leases/test_held_leases.py`` has more of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete
from sqlalchemy.orm import Mapped, Session, mapped_column

import optilock.asyncio
from optilock import AsyncUnitOfWork, ConfigurationError, Isolation, UnitOfWork, Versioned, shares
from optilock.shares import HandleLost, Shared, SharingViolation
from optilock.tables.names import SHARES
from tests.support.models import key, own_base
from tests.support.waiting import (
    OFTEN,
    for_ever,
    renewed,
    renewed_awaited,
    until,
    until_past,
)
from tests.support.waiting import often as often

# They wait for seconds, and each database keeps the same promises.
pytestmark = pytest.mark.usually("postgresql")

Base = own_base()


class Desk(Shared, Versioned, Base):
    __tablename__ = "held_shared_desks"
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


#: Seconds: for a handle that is lost, or not, after some heartbeats that were not sent.
LONGER = 3.0
gets_many_heartbeats = pytest.mark.usefixtures("often")
ROW: Any = (Desk, 1)


def create(connection: Any) -> None:
    Desk.__table__.drop(connection, checkfirst=True)
    Desk.__table__.create(connection)
    SHARES.tables.drop_all(connection)
    SHARES.tables.create_all(connection)
    connection.execute(Desk.__table__.insert(), [{"id": 1, "version": 1}])


@pytest.fixture
def desks(engine: Engine) -> Iterator[Engine]:
    with engine.begin() as connection:
        create(connection)
    yield engine
    with engine.begin() as connection:
        Desk.__table__.drop(connection)
        SHARES.tables.drop_all(connection)


def opened(engine: Engine, name: Any = ROW) -> Any:
    with Session(engine) as session:
        return shares.look(session, name).open


def sending(*names: str) -> int:
    return sum(one.name in ("optilock handle", *names) for one in threading.enumerate())


def closed_by_somebody(connection: Any) -> None:
    connection.execute(delete(shares.Shares().handles))


@gets_many_heartbeats
@pytest.mark.parametrize(
    "name", [ROW, pytest.param("import", marks=pytest.mark.full)], ids=["row", "name"]
)
def test_it_stays_open_and_is_then_closed(desks: Engine, name: Any) -> None:
    with shares.opened(desks, name, "RW", "R", seconds=OFTEN, owner="Ada") as held:
        first = held.handle
        for _ in range(2):
            before = held.handle
            renewed(held)
            assert held.handle.until > before.until  # type: ignore[operator]
            (now,) = opened(desks, name)
            assert (now.owner, now.access, now.share) == ("Ada", "RW", "R")
            assert now.until > before.until
        with pytest.raises(SharingViolation), Session(desks) as session, session.begin():
            shares.open(session, name, "W", "RWD")
        held.check()
        assert held.state is None
        assert first.id.hex not in repr(held.__dict__)
    assert opened(desks, name) == held.state.open == ()  # type: ignore[union-attr]
    assert sending() == 0


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("way", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_whatever_leaves_the_block_closes_it(desks: Engine, way: Any) -> None:
    with pytest.raises(way), shares.opened(desks, "name", "RW", seconds=OFTEN):
        raise way
    assert (opened(desks, "name"), sending()) == ((), 0)


def test_the_block_is_not_entered_beside_others(desks: Engine) -> None:
    with Session(desks) as session, session.begin():
        shares.open(session, ROW, "RW")
    with pytest.raises(SharingViolation), shares.opened(desks, ROW, "R", "R"):
        raise AssertionError
    assert sending() == 0


@gets_many_heartbeats
def test_its_owner_is_told_at_once_that_it_is_lost(desks: Engine) -> None:
    told: list[Any] = []
    heard = threading.Event()

    def on_lost(error: HandleLost) -> None:
        told.append(error)
        heard.set()

    with (
        pytest.raises(HandleLost) as raised,
        shares.opened(desks, ROW, "RW", seconds=OFTEN, on_lost=on_lost) as held,
    ):
        held.check()
        with desks.begin() as connection:
            closed_by_somebody(connection)
        assert heard.wait(OFTEN - 5)  # not at its end only
        with pytest.raises(HandleLost):
            held.check()
        with pytest.raises(HandleLost), UnitOfWork(desks, parts=[held]) as session:
            session.get_one(Desk, 1).text = "mine"
    assert told == [raised.value] == [held.lost]
    assert sending() == 0


@gets_many_heartbeats
def test_units_write_through_it(desks: Engine) -> None:
    with shares.opened(desks, ROW, "RW", seconds=OFTEN) as held:
        for number in range(3):
            with UnitOfWork(desks, parts=[held]) as session:
                session.get_one(Desk, 1).text = f"edit {number}"
            renewed(held)
        with pytest.raises(SharingViolation), UnitOfWork(desks) as session:
            session.get_one(Desk, 1).text = "theirs"
    with UnitOfWork(desks) as session:
        assert session.get_one(Desk, 1).text == "edit 2"


LEVELS = [Isolation.REPEATABLE_READ, pytest.param(Isolation.SERIALIZABLE, marks=pytest.mark.full)]


@gets_many_heartbeats
@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.full
def test_heartbeats_end_no_transaction_that_reads_a_snapshot(
    desks: Engine, level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shares.opened(desks, ROW, "RW", seconds=OFTEN) as held:
        sent: list[bool] = []
        renew = held.renew
        monkeypatch.setattr(held, "renew", lambda engine: sent.append(renew(engine)) or sent[-1])
        for number in range(2):
            with UnitOfWork(desks, parts=[held], isolation=level) as session:
                desk = session.get_one(Desk, 1)
                sent.clear()
                until(lambda: len(sent) > 1)  # the first may have begun before
                desk.text = f"edit {number}"


@pytest.mark.modes(full=True)
@pytest.mark.full
def test_heartbeats_wait_for_no_transaction_of_the_owner(desks: Engine, database: Any) -> None:
    """It lasts for longer than the handle does without heartbeats, and nothing hangs.

    Where it keeps heartbeats from being written, the handle is lost, its owner is told so, and its
    unit stores nothing.
    """
    lost = None
    try:
        with shares.opened(desks, ROW, "RW", seconds=LONGER) as held:
            first = held.handle
            with UnitOfWork(desks, parts=[held], isolation=Isolation.READ_COMMITTED) as session:
                session.get_one(Desk, 1).text = "mine"
                session.flush()
                until_past(desks, first.until)
            if database.family == "postgresql":
                renewed(held)
                held.check()
            else:
                until(lambda: held.lost)
    except HandleLost as error:
        lost = error
    assert (lost is None) is (database.family == "postgresql")
    with UnitOfWork(desks) as session:
        assert session.get_one(Desk, 1).text == ("mine" if lost is None else "")


def test_the_end_waits_for_nobody_who_has_the_name(desks: Engine) -> None:
    with Session(desks) as session:
        with shares.opened(desks, "name", "R", "RWD", seconds=OFTEN) as held:
            shares.create(session, "name")
        until(lambda: sending("optilock attempt") == 0)
        session.rollback()
    (left,) = opened(desks, "name")  # until its time is over
    assert left.until == held.handle.until


def test_what_cannot_be_kept_open_is_refused(desks: Engine) -> None:
    memory = create_engine("sqlite://")
    SHARES.tables.create_all(memory)
    with pytest.raises(ConfigurationError, match=r"shares\.opened\(\) renews"):
        shares.opened(memory, "name", "R").__enter__()
    memory.dispose()
    with pytest.raises(ConfigurationError, match="up to 3600 seconds"):
        shares.opened(desks, "name", "R", seconds=float("nan")).__enter__()


# -- async -----------------------------------------------------------------------------------------


@pytest.fixture
async def async_desks(async_engine: Any) -> Any:
    async with async_engine.begin() as connection:
        await connection.run_sync(create)
    yield async_engine
    async with async_engine.begin() as connection:
        await connection.run_sync(Desk.__table__.drop)
        await connection.run_sync(SHARES.tables.drop_all)


@gets_many_heartbeats
@pytest.mark.anyio
async def test_a_task_sends_the_heartbeats(async_desks: Any) -> None:
    async with optilock.asyncio.shares.opened(async_desks, ROW, "RW", seconds=OFTEN) as held:
        for _ in range(3):
            async with AsyncUnitOfWork(async_desks, parts=[held]) as session:
                (await session.get_one(Desk, 1)).text += "!"
            await renewed_awaited(held)
        held.check()
    assert held.state is not None
    assert held.state.open == ()
    async with AsyncUnitOfWork(async_desks) as session:
        assert (await session.get_one(Desk, 1)).text == "!!!"


@gets_many_heartbeats
@pytest.mark.anyio
async def test_the_task_of_its_owner_is_cancelled_when_it_is_lost(async_desks: Any) -> None:
    task, before = asyncio.current_task(), len(asyncio.all_tasks())
    assert task is not None
    with pytest.raises(HandleLost):
        async with optilock.asyncio.shares.opened(async_desks, ROW, "RW", seconds=OFTEN):
            async with async_desks.begin() as connection:
                await connection.run_sync(closed_by_somebody)
            await for_ever()
    assert (task.cancelling(), len(asyncio.all_tasks())) == (0, before)


@pytest.mark.anyio
async def test_sync_and_async_factories_are_told_apart(async_desks: Any) -> None:
    with pytest.raises(ConfigurationError, match="async with"):
        shares.opened(async_desks, "name", "R").__enter__()
    with pytest.raises(ConfigurationError, match="with shares"):
        async with optilock.asyncio.shares.opened(async_desks.sync_engine, "name", "R"):
            pass
