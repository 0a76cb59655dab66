"""The server does not answer, or dies and comes back, while somebody holds a lease or a handle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from optilock_apps import servers
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Mapped, Session, mapped_column

import optilock.asyncio
from optilock import UnitOfWork, Versioned, leases, shares
from optilock.leases import ENDLESS, Leasable, LeaseHeld, LeaseLost, LeasePolicy
from optilock.shares import HandleLost, SharingViolation
from optilock.tables.names import SHARES
from tests.support.failing_servers import frozen, restarted
from tests.support.models import key, own_base
from tests.support.waiting import LIMIT, for_ever

Base = own_base()


class Lamp(Leasable, Versioned, Base):
    __tablename__ = "failing_lamps"
    __lease_policy__ = LeasePolicy(shortest=0.1, longest=60)
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(default="")


TABLE: Any = Lamp.__table__
ROW = (Lamp, 1)
LENGTH = 1.0
in_full = pytest.mark.full


def create(connection: Any) -> None:
    TABLE.drop(connection, checkfirst=True)
    TABLE.create(connection)
    SHARES.tables.create_all(connection)
    connection.execute(TABLE.insert(), [{"id": n, "version": 1} for n in (1, 2)])


@pytest.fixture
def lamps(database: Any) -> Iterator[Engine]:
    """None of its connections outlives another test."""
    engine = create_engine(database.url)
    with engine.begin() as connection:
        create(connection)
    yield engine
    TABLE.drop(engine)
    engine.dispose()


HOLDS = {
    "lease": lambda engine, **options: leases.lease(engine, ROW, LENGTH, **options),
    "handle": lambda engine, **options: shares.opened(
        engine, "name", "RW", seconds=LENGTH, **options
    ),
}


@pytest.mark.needs("server")
@pytest.mark.parametrize("what", ["lease", pytest.param("handle", marks=in_full)])
@pytest.mark.full
def test_a_server_that_does_not_answer_is_not_waited_for(lamps: Engine, what: str) -> None:
    """Its holder is told when the time is over, and the block ends soon after."""
    heard = threading.Event()
    with (
        ExitStack() as ice,
        pytest.raises((LeaseLost, HandleLost)),
        HOLDS[what](lamps, on_lost=lambda error: heard.set()) as held,
    ):
        ice.enter_context(frozen(lamps))
        assert heard.wait(LIMIT)
        with pytest.raises((LeaseLost, HandleLost)):
            held.check()


@pytest.mark.needs("server")
@pytest.mark.full
def test_the_end_of_a_block_waits_for_no_server(lamps: Engine) -> None:
    with ExitStack() as ice:
        with leases.lease(lamps, ROW, 60) as held:
            ice.enter_context(frozen(lamps))
        assert held.lost is None  # it ends by itself


@pytest.mark.anyio
@pytest.mark.needs("server")
@pytest.mark.full
async def test_no_task_waits_for_it_either(async_engine: Any) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(create)
    with ExitStack() as ice, pytest.raises(LeaseLost):
        async with optilock.asyncio.lease(async_engine, ROW, LENGTH):
            ice.enter_context(frozen_of(async_engine))
            await for_ever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


def frozen_of(engine: Any) -> Any:
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    sync = create_engine(engine.url.set(drivername=drivers[engine.dialect.name]))
    return frozen(sync)


SERVERS = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}


@pytest.mark.full
@pytest.mark.parametrize("name", SERVERS)
def test_leases_and_handles_outlive_a_restart_of_the_server(name: str) -> None:
    """So does the lease that is renewed in a block, if the server is back in time."""
    with servers_running(name) as engine, ExitStack() as again:
        with engine.begin() as connection:
            create(connection)
        with Session(engine) as session, session.begin():
            endless = leases.acquire(session, (Lamp, 2), ENDLESS)
            handle = shares.open(session, "name", "RW", seconds=600)
        with leases.lease(engine, ROW, 60) as held:
            again.enter_context(restarted(engine))
            held.renew_once(engine)
            held.check()
            with UnitOfWork(engine, parts=[held, leases.Under(endless)]) as session:
                for lamp in session.query(Lamp):
                    lamp.text = "mine"
            for of in (ROW, (Lamp, 2)):
                with pytest.raises(LeaseHeld), UnitOfWork(engine) as session:
                    session.get_one(*of).text = "theirs"
            with Session(engine) as session, session.begin():
                later = leases.acquire(session, (Lamp, 2), ENDLESS, proposed=endless.id)
                assert (later.fence or 0) > (endless.fence or 0)
                with pytest.raises(SharingViolation):
                    shares.open(session, "name", "R", "R")
                shares.close(session, shares.heartbeat(session, handle))
        with Session(engine) as session:
            assert leases.look(session, ROW).state == "available"


@contextmanager
def servers_running(name: str) -> Iterator[Engine]:
    with SERVERS[name]() as server:
        engine = create_engine(server.url, pool_pre_ping=True)
        yield engine
        engine.dispose()
