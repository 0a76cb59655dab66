"""A counter of the parent that a listener writes when a child comes or goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import ForeignKey, delete, event, update
from sqlalchemy.orm import Mapped, mapped_column, relationship

from optilock import Versioned, bulk_delete, bulk_update, verify
from optilock.tokens import Unique
from tests.support.models import Base, key


class Thread(Versioned, Base):
    __tablename__ = "threads"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    count: Mapped[int] = mapped_column(default=0)
    replies: Mapped[list[Reply]] = relationship(back_populates="thread")


class Reply(Versioned, Base):
    __tablename__ = "replies"
    id: Mapped[int] = key()
    thread_id: Mapped[int] = mapped_column(ForeignKey("threads.id"))
    thread: Mapped[Thread] = relationship(back_populates="replies")


class Topic(Versioned, Base):
    __tablename__ = "topics"
    __version_token__ = Unique()
    id: Mapped[int] = key()
    name: Mapped[str | None]
    count: Mapped[int] = mapped_column(default=0)
    replies: Mapped[list[Answer]] = relationship(back_populates="thread")


class Answer(Versioned, Base):
    __tablename__ = "answers"
    id: Mapped[int] = key()
    thread_id: Mapped[int] = mapped_column(ForeignKey("topics.id"))
    thread: Mapped[Topic] = relationship(back_populates="replies")


class Wall(Versioned, Base):
    """Its count leaves the version."""

    __tablename__ = "walls"
    __version_ignore__ = ("count",)
    id: Mapped[int] = key()
    name: Mapped[str | None]
    count: Mapped[int] = mapped_column(default=0)
    replies: Mapped[list[Brick]] = relationship(back_populates="thread")


class Brick(Versioned, Base):
    __tablename__ = "bricks"
    id: Mapped[int] = key()
    thread_id: Mapped[int] = mapped_column(ForeignKey("walls.id"))
    thread: Mapped[Wall] = relationship(back_populates="replies")


@pytest.fixture(params=[(Thread, Reply), (Topic, Answer)], ids=["counter", "unique"])
def pair(request):
    owner, member = request.param
    with counting(owner, member):
        yield owner, member


@contextmanager
def counting(owner: Any, member: Any) -> Iterator[None]:
    table = owner.__table__

    def count(mapper: Any, connection: Any, target: Any) -> None:
        mine = update(table).where(table.c.id == target.thread_id)
        connection.execute(mine.values(count=table.c.count + 1))

    event.listen(member, "after_insert", count)
    try:
        yield
    finally:
        event.remove(member, "after_insert", count)


def test_what_a_listener_counts_moves_the_version_of_the_parent(
    pair, store, tables, watched, stored, refused
):
    """Who holds the parent as it was must not overwrite the count."""
    owner, member = pair
    tables(owner, member)
    store(owner(id=1, name="a"))
    session, stale = watched(), watched()
    held = stale.get_one(owner, 1)
    mine = session.get_one(owner, 1)
    session.add(member(id=1, thread=mine))
    session.commit()
    held.count += 1
    refused(stale)
    stale.rollback()

    assert stored(owner, 1)["count"] == 1


@pytest.mark.parametrize("dirty", [False, True])
def test_and_the_object_knows_it(pair, tables, store, watched, stored, dirty):
    owner, member = pair
    tables(owner, member)
    store(owner(id=1, name="a"))
    session = watched(expire_on_commit=False)
    mine = session.get_one(owner, 1)
    for n in (1, 2):
        if dirty:
            mine.name = f"b{n}"
        session.add(member(id=n, thread=mine))
        session.flush()
    mine.name = "c"
    session.commit()

    assert (stored(owner, 1)["name"], stored(owner, 1)["count"]) == ("c", 2)
    assert stored(owner, 1)["version"] == mine.version


@pytest.mark.needs("resolves-in-place")
def test_after_a_savepoint_it_has_the_version_that_it_had(pair, tables, store, watched, stored):
    owner, member = pair
    tables(owner, member)
    store(owner(id=1, name="a"))
    session = watched()
    mine = session.get_one(owner, 1)
    before = mine.version
    savepoint = session.begin_nested()
    session.add(member(id=1, thread=mine))
    session.flush()
    assert mine.version != before
    savepoint.rollback()
    assert mine.version == before
    mine.name = "b"
    session.commit()

    assert (stored(owner, 1)["name"], stored(owner, 1)["count"]) == ("b", 0)


@pytest.mark.needs("resolves-in-place")
def test_an_object_that_is_older_than_its_row_conflicts_all_the_same(
    pair, tables, store, watched, other, stored, refused
):
    owner, member = pair
    tables(owner, member)
    store(owner(id=1, name="a"))
    session = watched(autoflush=False)
    mine = session.get_one(owner, 1)
    other(owner, 1, name="theirs")
    session.add(member(id=1, thread=mine))
    session.flush()
    mine.name = "ours"
    refused(session)
    session.rollback()

    assert stored(owner, 1)["name"] == "theirs"


def test_a_count_that_is_ignored_leaves_the_version(store, tables, watched, stored):
    tables(Wall, Brick)
    store(Wall(id=1, name="a"))
    session = watched(expire_on_commit=False)
    mine = session.get_one(Wall, 1)
    with counting(Wall, Brick):
        session.add(Brick(id=1, thread=mine))
        session.commit()

    assert (stored(Wall, 1)["count"], stored(Wall, 1)["version"], mine.version) == (1, 1, 1)


@pytest.fixture
def listening(watched):
    """A session that sends ``statement`` at ``moment`` of its first flush."""

    def listening(moment, statement):
        session = watched(expire_on_commit=False)
        sent = []

        def send(running, *_):
            if not sent:
                sent.append(statement)
                statement(running)

        event.listen(session, moment, send)
        return session

    return listening


def _by_criteria(session):
    session.execute(update(Thread).where(Thread.id < 3).values(count=Thread.count + 1))


def _by_key(session):
    rows = [{"id": 2, "version": 1, "count": 1}]
    session.execute(update(Thread), rows)


def _delete(session):
    session.execute(delete(Thread).where(Thread.id == 2))


def _in_bulk(session):
    assert not bulk_update(session, Thread, [{"id": 2, "version": 1, "count": 1}]).conflicts


def _delete_in_bulk(session):
    assert not bulk_delete(session, Thread, [{"id": 2, "version": 1}]).conflicts


@pytest.mark.parametrize("moment", ["before_flush", "after_flush"])
@pytest.mark.parametrize("send", [_by_criteria, _by_key, _delete, _in_bulk, _delete_in_bulk])
def test_a_listener_of_the_flush_may_send_statements(store, stored, listening, moment, send):
    """What is pending is being flushed: nothing is flushed for them."""
    store(Thread(id=1, name="a"), Thread(id=2, name="b"), Thread(id=3, name="c"))
    session = listening(moment, send)
    mine = session.get_one(Thread, 1)
    verify(session.get_one(Thread, 3))
    mine.name = "mine"
    session.commit()
    mine.name = "again"
    session.commit()

    assert stored(Thread, 1)["name"] == "again"
    assert stored(Thread, 1)["count"] == (1 if send is _by_criteria else 0)
    deleted = send in (_delete, _delete_in_bulk)
    assert stored(Thread, 2) is None if deleted else stored(Thread, 2)["count"] == 1
