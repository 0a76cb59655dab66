"""Policies for deletes, links, and what is in hand after a conflict, under an AsyncSession."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import selectinload

from optilock import AsyncUnitOfWork, ConcurrencyError, watch
from optilock.errors import LinkGone
from optilock.resolvers import OnDelete
from optilock.testing import count_statements
from tests.support.models import Account, Post, Tag, post_tags

pytestmark = pytest.mark.anyio


@pytest.fixture
def prepared(async_engine, async_store):
    async_store(Account(id=1, owner="a"), Post(id=1, title="a", tags=[Tag(id=1, name="x")]))
    return async_engine


async def theirs(engine, **values):
    async with AsyncSession(engine) as session, session.begin():
        row = await session.get_one(Account, 1)
        for name, value in values.items():
            setattr(row, name, value)
        if not values:
            await session.delete(row)


@pytest.mark.parametrize("values", [{}, {"owner": "theirs"}], ids=["gone", "changed"])
async def test_a_policy_settles_deletes(prepared, values):
    async with AsyncUnitOfWork(prepared, on_delete=OnDelete.IGNORE_VERSION) as session:
        await session.delete(await session.get_one(Account, 1))
        await theirs(prepared, **values)

    async with AsyncSession(prepared) as session:
        assert await session.get(Account, 1) is None


async def test_one_of_several_links_that_is_gone_is_noticed(prepared):
    async with AsyncSession(prepared) as session, session.begin():
        post = await session.get_one(Post, 1, options=[selectinload(Post.tags)])
        post.tags += [Tag(id=n, name="x") for n in (2, 3)]
    async with watch(async_sessionmaker(prepared))() as session:
        post = await session.get_one(Post, 1, options=[selectinload(Post.tags)])
        kept = post.tags[2]
        post.tags[:] = [kept]
        post.title = "mine"
        async with prepared.begin() as connection:
            await connection.execute(delete(post_tags).where(post_tags.c.tag_id == 1))
        with pytest.raises(LinkGone) as caught:
            await session.flush()
        assert (caught.value.found, len(caught.value.links)) == (1, 2)
        await session.commit()
    async with AsyncSession(prepared) as session:
        assert (await session.scalars(select(post_tags.c.tag_id))).all() == [3]
        assert await session.scalar(select(Post.title)) == "mine"


async def test_links_that_are_there_are_taken_away(prepared):
    async with watch(async_sessionmaker(prepared))() as session:
        post = await session.get_one(Post, 1, options=[selectinload(Post.tags)])
        post.tags.clear()
        with count_statements(prepared.sync_engine) as sent:
            await session.commit()
        assert sent.count == 1
    async with AsyncSession(prepared) as session:
        assert (await session.scalars(select(post_tags.c.tag_id))).all() == []


async def test_a_link_that_is_gone_is_an_error_of_its_own(prepared):
    async with watch(async_sessionmaker(prepared))() as session:
        post = await session.get_one(Post, 1, options=[selectinload(Post.tags)])
        post.tags.clear()
        async with prepared.begin() as connection:
            await connection.execute(delete(post_tags))
        with pytest.raises(LinkGone):
            await session.commit()

        assert session.is_active
        await session.commit()


@pytest.mark.parametrize("expire", [True, False])
async def test_after_a_conflict_nothing_has_to_be_loaded(prepared, expire):
    async with watch(async_sessionmaker(prepared, expire_on_commit=expire))() as session:
        row = await session.get_one(Account, 1)
        row.balance = 10
        await theirs(prepared, owner="theirs")
        with pytest.raises(ConcurrencyError) as caught:
            await session.commit()

        assert (row.balance, row.owner, row.version) == (10, "a", 1)
        [entry] = caught.value.entries
        assert (entry.current["balance"], entry.database["owner"]) == (10, "theirs")
        await session.close()
        assert inspect(row).detached
        assert (row.balance, entry.original["owner"]) == (10, "a")
    async with AsyncSession(prepared) as session, session.begin():
        entry.apply_to(await session.get_one(Account, 1))
    async with AsyncSession(prepared) as session:
        stored = await session.scalar(select(Account))
        assert (stored.balance, stored.owner) == (10, "theirs")
