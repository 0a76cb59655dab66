"""The same guard under an AsyncSession; async resolvers are awaited there."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from sqlalchemy import inspect, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from optilock import ConcurrencyError, client_wins, merge_fields, watch
from optilock.resolvers import Resolution
from tests.support.models import Account, Dog, Kinds
from tests.support.waiting import turn

pytestmark = pytest.mark.anyio
rows = pytest.mark.parametrize("count", [1, 3])


@pytest.fixture
def prepared(async_engine, async_tables):
    async_tables(Account, Dog, Kinds)
    return async_engine


async def filled(engine, count):
    async with AsyncSession(engine) as session, session.begin():
        session.add_all(Account(id=n, owner="a", balance=1) for n in range(count))


async def theirs(engine, key, **values):
    async with AsyncSession(engine) as session, session.begin():
        row = await session.get_one(Account, key)
        for name, value in values.items():
            setattr(row, name, value)


async def edited(session):
    found = (await session.scalars(select(Account).order_by(Account.id))).all()
    for row in found:
        row.balance = 10
    return found


@rows
async def test_stale_rows_are_told(prepared, count):
    """trap 6"""
    await filled(prepared, count)
    async with watch(async_sessionmaker(prepared))() as session:
        found = await edited(session)
        await theirs(prepared, 0, owner="theirs")
        with pytest.raises(ConcurrencyError) as caught:
            await session.flush()

        assert [e.identity for e in caught.value.entries] == [(0,)]
        assert session.is_active
        assert list(session.dirty) == [found[0]]
        assert (found[0].balance, found[0].version) == (10, 1)  # nothing was expired


@rows
async def test_the_error_can_be_read_without_a_database(prepared, count):
    """trap 6: plain values: nothing is loaded, so no MissingGreenlet in the handler."""
    await filled(prepared, count)
    async with watch(async_sessionmaker(prepared))() as session:
        await edited(session)
        await theirs(prepared, 0, owner="theirs", balance=5)
        with pytest.raises(ConcurrencyError) as caught:
            await session.commit()
        await session.rollback()

    assert "Account 0" in str(caught.value)
    [entry] = pickle.loads(pickle.dumps(caught.value)).entries
    assert (entry.original["balance"], entry.current["balance"], entry.database["balance"]) == (
        1, 10, 5,
    )  # fmt: skip


@rows
@pytest.mark.parametrize("resolver", [client_wins, merge_fields])
async def test_conflicts_are_resolved(prepared, count, resolver):
    """trap 6"""
    await filled(prepared, count)
    sessions = watch(async_sessionmaker(prepared, expire_on_commit=False), on_conflict=resolver)
    async with sessions() as session:
        found = await edited(session)
        await theirs(prepared, 0, owner="theirs")
        await session.commit()

    async with AsyncSession(prepared) as reader:
        stored = await reader.get_one(Account, 0)
        assert (stored.owner, stored.balance, stored.version) == ("theirs", 10, 3)
    assert (found[0].owner, found[0].balance, found[0].version) == ("theirs", 10, 3)


@rows
async def test_an_async_resolver_is_awaited(prepared, count):
    async def later(entry):
        await turn()
        async with AsyncSession(prepared) as other:
            assert (await other.get_one(Account, 0)).owner == "theirs"
        return Resolution.write({"balance": 42})

    await filled(prepared, count)
    async with watch(async_sessionmaker(prepared), on_conflict=later)() as session:
        await edited(session)
        await theirs(prepared, 0, owner="theirs", balance=5)
        await session.commit()

    async with AsyncSession(prepared) as reader:
        stored = await reader.get_one(Account, 0)
        assert (stored.owner, stored.balance, stored.version) == ("theirs", 42, 3)


async def test_what_an_async_resolver_raises_comes_out(prepared):
    """C9"""

    async def broken(entry):
        raise KeyError("mine")

    await filled(prepared, 2)
    async with watch(async_sessionmaker(prepared), on_conflict=broken)() as session:
        await edited(session)
        await theirs(prepared, 0, owner="theirs")
        with pytest.raises(KeyError, match="mine"):
            await session.flush()
        await session.rollback()

        assert (await session.get_one(Account, 0)).owner == "theirs"


@rows
async def test_deletes(prepared, count):
    await filled(prepared, count)
    async with watch(async_sessionmaker(prepared))() as session:
        for row in (await session.scalars(select(Account))).all():
            await session.delete(row)
        await theirs(prepared, 0, owner="theirs")
        with pytest.raises(ConcurrencyError) as caught:
            await session.commit()

    assert [(e.identity, e.action) for e in caught.value.entries] == [((0,), "delete")]


async def test_joined_rows_and_their_deletes(prepared):
    async with AsyncSession(prepared) as session, session.begin():
        session.add_all(Dog(id=n, name="a", tricks="sit") for n in range(3))
    async with watch(async_sessionmaker(prepared), on_conflict=client_wins)() as session:
        dogs = (await session.scalars(select(Dog).order_by(Dog.id))).all()
        dogs[0].tricks = "ours"
        await session.delete(dogs[1])
        async with AsyncSession(prepared) as other, other.begin():
            for n in (0, 1):
                (await other.get_one(Dog, n)).name = "theirs"
        await session.commit()

    async with AsyncSession(prepared) as reader:
        first = await reader.get_one(Dog, 0)
        assert (first.name, first.tricks) == ("theirs", "ours")
        assert await reader.get(Dog, 1) is None


async def test_values_of_many_types_go_together(prepared):
    async with AsyncSession(prepared) as session, session.begin():
        session.add_all(Kinds(id=n) for n in range(3))
    async with watch(async_sessionmaker(prepared))() as session:
        for row in (await session.scalars(select(Kinds))).all():
            row.data, row.short, row.big, row.flag = {"n": row.id}, "ü", row.id, True
            row.blob, row.real = b"\x00", 0.5
        await session.commit()

    async with AsyncSession(prepared) as reader:
        for row in await reader.scalars(select(Kinds)):
            assert (row.data, row.short, row.big, row.blob) == ({"n": row.id}, "ü", row.id, b"\x00")


async def test_a_scoped_session_can_be_watched(prepared):
    await filled(prepared, 2)
    sessions = async_scoped_session(async_sessionmaker(prepared), scopefunc=asyncio.current_task)
    watch(sessions)
    await edited(sessions)
    await theirs(prepared, 0, owner="theirs")
    with pytest.raises(ConcurrencyError):
        await sessions.flush()
    await sessions.remove()


async def test_other_async_sessions_are_left_alone(prepared):
    await filled(prepared, 1)
    watch(async_sessionmaker(prepared))
    async with AsyncSession(prepared) as session:
        await edited(session)
        await theirs(prepared, 0, owner="theirs")
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await session.flush()

    assert not isinstance(caught.value, ConcurrencyError)


async def test_after_the_refusal_the_session_goes_on(prepared):
    """EF-04, EF-06"""
    await filled(prepared, 3)
    async with watch(async_sessionmaker(prepared))() as session:
        found = await edited(session)
        await theirs(prepared, 0, owner="theirs")
        with pytest.raises(ConcurrencyError):
            await session.commit()
        with session.no_autoflush:
            await session.refresh(found[0], with_for_update=True)  # MariaDB reads a snapshot
        found[0].balance = 11
        await session.commit()

    async with AsyncSession(prepared) as reader:
        stored = await reader.get_one(Account, 0)
        assert (stored.balance, stored.owner) == (11, "theirs")
    assert inspect(found[0]).detached


@rows
async def test_stale_rows_of_an_update_by_key_are_told(prepared, count):
    """Also where the driver does not count the rows of an executemany."""
    await filled(prepared, count)
    await theirs(prepared, 0, owner="theirs")
    given = [{"id": n, "version": 1, "balance": 10} for n in range(count)]
    async with watch(async_sessionmaker(prepared))() as session:
        with pytest.raises(ConcurrencyError) as caught:
            await session.execute(update(Account), given)
        assert [e.identity for e in caught.value.entries] == [(0,)]
        await session.rollback()
        with pytest.raises(ConcurrencyError):
            await session.run_sync(lambda s: s.bulk_update_mappings(Account, given))
        await session.rollback()
        await session.execute(update(Account), [{**given[0], "version": 2}])
        await session.commit()
        assert (await session.get_one(Account, 0)).balance == 10


async def test_an_older_object_is_told_when_its_row_is_locked(prepared):
    await filled(prepared, 1)
    async with watch(async_sessionmaker(prepared, expire_on_commit=False))() as session:
        row = await session.get_one(Account, 0)
        await session.commit()
        await theirs(prepared, 0, owner="theirs")
        with pytest.raises(ConcurrencyError) as caught:
            await session.get(Account, 0, with_for_update=True)
        assert caught.value.entries[0].original["owner"] == row.owner == "a"
