"""A unit inside another one that it does not join: told when it is opened."""

from __future__ import annotations

import threading
import warnings

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock import UnitOfWork, unit_of_work
from optilock.errors import SeparateUnitWarning
from optilock.unit.async_unit import AsyncUnitOfWork


def told():
    return pytest.warns(SeparateUnitWarning, match="does not join the one that runs already")


@pytest.fixture
def second(database):
    """Another engine on the same database."""
    made = database.engine()
    yield made
    made.dispose()


FACTORIES = {
    "engine": lambda engine: engine,
    "sessionmaker": sessionmaker,
    "another level": lambda e: sessionmaker(e.execution_options(isolation_level="SERIALIZABLE")),
    "scoped": lambda engine: scoped_session(sessionmaker(engine)),
    "binds": lambda engine: sessionmaker(binds={object: engine}),
}


@pytest.mark.parametrize("inner", FACTORIES)
@pytest.mark.parametrize("outer", ["engine", "sessionmaker", "scoped"])
def test_another_factory_on_the_same_engine_is_told(engine, outer, inner):
    around, inside = FACTORIES[outer](engine), FACTORIES[inner](engine)
    if around is inside:
        inside = sessionmaker(engine)
    with UnitOfWork(around), told(), UnitOfWork(inside):
        pass


def test_the_warning_points_to_the_line_that_opens_the_inner_unit(engine):
    with UnitOfWork(engine), told() as warned, UnitOfWork(sessionmaker(engine)):
        pass
    assert warned[0].filename == __file__


def test_two_engines_of_one_database_are_told(engine, second):
    with UnitOfWork(engine), told(), UnitOfWork(second):
        pass


def test_a_unit_further_out_counts_as_well(engine):
    first = sessionmaker(engine)
    with UnitOfWork(engine), told(), UnitOfWork(first), told(), UnitOfWork(sessionmaker(engine)):
        pass


def test_a_decorated_function_is_told_and_points_to_its_caller(engine):
    @unit_of_work(sessionmaker(engine), attempts=3)
    def inner(session: Session) -> None:
        pass

    with UnitOfWork(engine), told() as warned:
        inner()
    assert [warning.filename for warning in warned] == [__file__]


def test_a_warning_that_is_an_error_leaves_nothing_open(engine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with UnitOfWork(engine), pytest.raises(SeparateUnitWarning):
            UnitOfWork(sessionmaker(engine)).__enter__()
        with UnitOfWork(sessionmaker(engine)):
            pass
    assert engine.pool.checkedout() == 0


# -- no false alarms (warnings are errors here) ----------------------------------------------------


def test_units_that_join_or_say_that_they_are_two_are_not_told(engine):
    with (
        UnitOfWork(engine),
        UnitOfWork(engine),
        UnitOfWork(sessionmaker(engine), propagation="independent"),
    ):
        pass


@pytest.mark.engines("postgresql", "mariadb")
def test_a_unit_that_only_reads_waits_for_nobody(engine):
    with UnitOfWork(engine), UnitOfWork(sessionmaker(engine), read_only=True):
        pass


def test_units_one_after_the_other_and_in_another_thread_are_not_told(engine):
    def unit() -> None:
        with UnitOfWork(sessionmaker(engine)):
            pass

    with UnitOfWork(engine):
        thread = threading.Thread(target=unit)
        thread.start()
        thread.join()
    unit()


def test_another_database_is_not_told(engine, tmp_path):
    other, memory = create_engine(f"sqlite:///{tmp_path}/other.db"), create_engine("sqlite://")
    nested: list[Engine] = [engine, other, memory, create_engine("sqlite://")]
    with UnitOfWork(nested[0]), UnitOfWork(nested[1]), UnitOfWork(nested[2]), UnitOfWork(nested[3]):
        pass
    for one in nested:
        one.dispose()


def test_sessions_on_one_connection_are_one_transaction(engine):
    with engine.connect() as connection:
        outer, inner = sessionmaker(connection), sessionmaker(connection)
        with UnitOfWork(outer), UnitOfWork(inner):
            pass


@pytest.mark.anyio
async def test_async_units_are_told_as_well(async_engine, async_database):
    second = create_async_engine(async_database.async_url)
    try:
        async with AsyncUnitOfWork(async_engine):
            for inside in (async_sessionmaker(async_engine), second):
                with told() as warned:
                    async with AsyncUnitOfWork(inside):
                        pass
                assert warned[0].filename == __file__
            async with AsyncUnitOfWork(second, propagation="independent"):
                pass
            with told(), UnitOfWork(async_engine.sync_engine):
                pass
    finally:
        await async_engine.dispose()
        await second.dispose()
