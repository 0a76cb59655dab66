"""A unit of work has the same results with ``pipelined=``, and takes no trip more."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from optilock import AsyncUnitOfWork, UnitOfWork
from optilock.testing import Wire
from optilock.unit import round_trips, set_trip_time
from tests.support.pipelined_cases import CASES, Base, Case, World, outcome_of, store

pytestmark = pytest.mark.engines("postgresql")

#: psycopg's preparing is a trip of its own, where nothing goes along.
UNPREPARED = {"prepare_threshold": None}
#: Values of the option, and the trip time: far away, and unknown, so that the unit measures.
WAYS = ((False, None), (True, 0.005), (True, None))


@pytest.fixture(autouse=True)
def _learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_trips, "ASSUMED", None)


@pytest.fixture
def world(engine: Engine) -> World:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE numbers")
    return World(engine)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.tenth
def test_a_unit_ends_as_it_does_without(world: World, line: Wire, case: Case) -> None:
    engine = create_engine(line.url, connect_args=UNPREPARED)
    engine.connect().close()  # SQLAlchemy asks the server for its version, and more
    ends = []
    for pipelined, trip in WAYS:
        set_trip_time(engine, trip)
        store(world.engine)
        error = None
        with line.counting() as trips:
            try:
                with UnitOfWork(engine, pipelined=pipelined, **case.options) as session:
                    case.body(session, world)
            except Exception as raised:
                error = raised
        with engine.connect() as connection:
            state = state_of(connection.connection.driver_connection)
        ends.append([trips.count, outcome_of(error), world.rows(), state])
    engine.dispose()
    counts = [count for count, *_ in ends]
    assert [after for _, *after in ends] == [ends[0][1:]] * len(WAYS)
    assert (counts[0], counts[1]) == case.trips
    assert max(counts) == counts[0]


@pytest.mark.anyio
@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_async_unit_ends_as_it_does_without(world: World, line: Wire, case: Case) -> None:
    engine = create_async_engine(line.url, connect_args=UNPREPARED)
    await (await engine.connect()).close()
    ends = []
    for pipelined, trip in WAYS:
        set_trip_time(engine, trip)
        store(world.engine)
        error = None
        with line.counting() as trips:
            try:
                async with AsyncUnitOfWork(engine, pipelined=pipelined, **case.options) as session:
                    await session.run_sync(case.body, world)
            except Exception as raised:
                error = raised
        async with engine.connect() as connection:
            raw = await connection.get_raw_connection()
            state = state_of(raw.driver_connection)
        ends.append([trips.count, outcome_of(error), world.rows(), state])
    await engine.dispose()
    counts = [count for count, *_ in ends]
    assert [after for _, *after in ends] == [ends[0][1:]] * len(WAYS)
    assert (counts[0], counts[1]) == case.trips
    assert max(counts) == counts[0]


def state_of(driver):
    return (
        driver.autocommit,
        driver.cursor_factory,
        driver.server_cursor_factory,
        driver.isolation_level,
        driver.read_only,
        driver.info.transaction_status,
    )
