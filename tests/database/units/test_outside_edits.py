"""An object that was edited before an attempt, and added in it, is stored with its edit, or not.

Attempt 1 conflicts on paper 2. Its rollback expires paper 1, which was edited outside.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from optilock import (
    AsyncUnitOfWork,
    ConcurrencyError,
    UnitOfWork,
    retry,
    retrying,
    unit_of_work,
    watch,
)
from tests.support.models import Comment, Post
from tests.support.repeated_cases import Author, Paper

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")

Edit = Callable[[Any], Any]


def a_column(paper: Paper) -> None:
    paper.title = "ours"


def a_value_in_place(paper: Paper) -> None:
    assert paper.data is not None
    paper.data["a"] = 1


def a_reference(paper: Paper) -> None:
    paper.author = Author(id=5, name="new")


class Save:
    """A function that is run again: the object was edited outside, and another row conflicts."""

    def __init__(self, engine: Engine, obj: Any, other: Callable[..., None]) -> None:
        self.engine, self.obj, self.other, self.runs = engine, obj, other, 0

    def __call__(self, session: Session) -> None:
        self.runs += 1
        session.add(self.obj)
        with session.no_autoflush:
            second = session.get_one(Paper, 2)
            if self.runs == 1:
                self.other(Paper, 2, n=second.n + 4)
            second.n += 1
        if isinstance(self.obj, Paper):
            self.obj.body += "+"  # by the function: from what each attempt has

    def in_a_unit(self) -> None:
        unit_of_work(self.engine, retry=retrying(wait_initial=0), strategy="optimistic")(self)()

    def in_a_session(self) -> None:
        with watch(sessionmaker(self.engine)).begin() as session:
            self(session)


@pytest.fixture
def detached(engine, store):
    store(Paper(id=1, data={}), Paper(id=2, data={}), Author(id=1, name="we"))
    with UnitOfWork(engine) as session:
        paper = session.get_one(Paper, 1)
        assert paper.author is None
    return paper


@pytest.mark.parametrize(
    "edit", [a_column, a_value_in_place, a_reference], ids=lambda e: e.__name__
)
@pytest.mark.parametrize("copied", [False, True], ids=["itself", "pickled"])
def test_an_edit_is_stored_by_the_second_attempt(engine, detached, other, stored, edit, copied):
    edit(detached)
    save = Save(engine, pickle.loads(pickle.dumps(detached)) if copied else detached, other)
    save.in_a_unit()
    found = stored(Paper, 1)
    changed = {a_column: "title", a_value_in_place: "data", a_reference: "author_id"}[edit]
    wanted = {"title": "ours", "data": {"a": 1}, "author_id": 5}[changed]
    assert (save.runs, found[changed], found["body"]) == (2, wanted, "old+")
    assert stored(Paper, 2)["n"] == 6


def test_new_and_removed_members_are_stored(engine, store, other, stored):
    comments = [Comment(id=1, text="a"), Comment(id=2, text="b")]
    store(Post(id=1, title="old", comments=comments), Paper(id=2, data={}))
    with UnitOfWork(engine) as session:
        post = session.get_one(Post, 1)
        assert len(post.comments) == 2
    post.comments[1].text = "edited"
    del post.comments[0]
    post.comments.append(Comment(id=3, text="c"))
    save = Save(engine, post, other)
    save.in_a_unit()
    assert (save.runs, stored(Comment, 1)) == (2, None)
    assert [stored(Comment, number)["text"] for number in (2, 3)] == ["edited", "c"]


def test_attempts_in_attempts_put_it_back_as_well(engine, detached, other, stored):
    a_column(detached)
    save = Save(engine, detached, other)
    retry(wait_initial=0)(retry(attempts=1)(save.in_a_session))()
    assert (save.runs, stored(Paper, 1)["title"]) == (2, "ours")


def test_an_edit_over_a_newer_row_is_a_conflict_in_each_attempt(engine, detached, other, stored):
    a_column(detached)
    other(Paper, 1, title="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        Save(engine, detached, other).in_a_unit()
    assert {entry.identity for entry in caught.value.entries} >= {(1,)}
    assert stored(Paper, 1)["title"] == "theirs"


def test_an_object_that_is_still_in_a_session_ends_the_attempts(engine, detached, other, stored):
    a_column(detached)
    save, sessions = Save(engine, detached, other), watch(sessionmaker(engine))
    with sessions() as session:

        @retry(wait_initial=0)
        def work() -> None:
            session.rollback()
            save(session)
            session.commit()

        with pytest.raises(ConcurrencyError, match=r"Paper \(1,\) was edited before"):
            work()
    assert (save.runs, stored(Paper, 1)["title"]) == (1, "title")


@pytest.mark.anyio
async def test_async_units_put_it_back_as_well(async_engine: AsyncEngine, async_tables: Any):
    async_tables(Paper)
    async with AsyncSession(async_engine, expire_on_commit=False) as session, session.begin():
        session.add_all([paper := Paper(id=1, data={}), Paper(id=2, data={})])
    paper.title = "ours"
    runs: list[int] = []

    @retry(wait_initial=0)
    async def save() -> None:
        sessions = async_sessionmaker(async_engine)
        async with AsyncUnitOfWork(sessions, strategy="optimistic") as session:
            session.add(paper)
            with session.no_autoflush:
                second = await session.get_one(Paper, 2)
                if not runs:
                    async with AsyncSession(async_engine) as other, other.begin():
                        (await other.get_one(Paper, 2)).n += 4
            runs.append(1)
            second.n += 1

    await save()
    async with AsyncSession(async_engine) as session:
        assert (await session.get_one(Paper, 1)).title == "ours"
    assert len(runs) == 2
