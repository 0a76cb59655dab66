"""The scenarios again where an AsyncSession makes a difference: hooks, reloads, and no surprise IO.

The other writer is a plain sync session on the same database, as in every story here.
"""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    events,
    store_wins,
    unit_of_work,
    watch,
)
from tests.spec.models import Doc
from tests.support.models import Dog

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(async_database):
    """For the fixtures of the other writer."""
    made = async_database.engine()
    yield made
    made.dispose()


@pytest.fixture
async def sessions(async_engine):
    return lambda **options: watch(async_sessionmaker(async_engine), **options)


@pytest.fixture
def heard():
    found = []
    listener = events.listen(found.append, written=False)
    yield found
    events.unlisten(listener)


async def test_a_new_object_is_not_reloaded_and_stays_new(tables, stored, sessions):
    """EF-21"""
    tables(Doc)
    async with sessions()() as session:
        doc = Doc(id=1, name="ours")
        session.add(doc)
        with session.no_autoflush, pytest.raises(InvalidRequestError):
            await session.refresh(doc)
        assert doc in session.new
        await session.commit()

    assert stored(Doc, 1)["name"] == "ours"


async def test_a_row_that_both_delete_leaves_the_session(store, gone, sessions):
    """EF-16"""
    store(Doc(id=1))
    async with sessions(on_conflict=store_wins)() as session:
        doc = await session.get_one(Doc, 1)
        await session.delete(doc)
        gone(Doc, 1)
        await session.commit()

        assert inspect(doc).detached


async def test_listeners_hear_conflict_resolution_and_commit(
    async_engine, store, other, stored, heard
):
    """EF-51, EF-52"""
    store(Doc(id=1, name="a"))

    @unit_of_work(async_sessionmaker(async_engine), on_conflict=store_wins)
    async def edit(session):
        doc = await session.get_one(Doc, 1)
        other(Doc, 1, name="theirs")
        doc.name = "ours"

    await edit()
    await async_engine.dispose()

    assert [type(e) for e in heard] == [events.Conflict, events.Resolved, events.Committed]
    assert stored(Doc, 1)["name"] == "theirs"


async def test_a_stale_joined_row_is_noticed(store, other, stored, sessions):
    """SA-49, SA-31"""
    store(Dog(id=1, name="a", tricks="a"))
    async with sessions()() as session:
        (await session.get_one(Dog, 1)).tricks = "ours"
        other(Dog, 1, name="theirs")
        with pytest.raises(ConcurrencyError):
            await session.commit()

    assert stored(Dog, 1)["tricks"] == "a"


async def test_a_copy_of_an_older_version_is_refused_at_the_merge(store, other, stored, sessions):
    """SA-17"""
    store(Doc(id=1, name="a"))
    async with sessions()() as session:
        copy = await session.get_one(Doc, 1)
        session.expunge(copy)
        copy.name = "ours"
        await session.rollback()
        other(Doc, 1, name="theirs")
        with pytest.raises(StaleDataError):
            await session.merge(copy)

    assert stored(Doc, 1)["name"] == "theirs"


async def test_a_query_that_flushes_tells_the_conflict(async_engine, store, other, stored):
    """trap 4"""
    store(Doc(id=1, name="a"))
    with pytest.raises(ConcurrencyError) as caught:
        async with AsyncUnitOfWork(async_sessionmaker(async_engine)) as session:
            doc = await session.get_one(Doc, 1)
            doc.name = "ours"
            other(Doc, 1, name="theirs")
            await session.scalars(select(Doc).where(Doc.id > 1))
    await async_engine.dispose()

    assert caught.value.entries[0].current["name"] == "ours"
    assert stored(Doc, 1)["name"] == "theirs"


async def test_after_a_savepoint_the_version_is_the_one_it_had(store, stored, sessions):
    """trap 7, RL-35"""
    store(Doc(id=1, name="a"))
    async with sessions()() as session:
        doc = await session.get_one(Doc, 1)
        doc.name = "before"
        await session.flush()
        savepoint = await session.begin_nested()
        doc.name = "inside"
        await session.flush()
        await savepoint.rollback()
        await session.refresh(doc)
        assert (doc.name, doc.version) == ("before", 2)
        doc.name = "after"
        await session.commit()

    assert (stored(Doc, 1)["name"], stored(Doc, 1)["version"]) == ("after", 3)
