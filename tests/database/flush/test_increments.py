"""Columns that writers add to (``__version_commutes__``): increments conflict with nothing."""

from __future__ import annotations

import datetime
import pickle
import threading
import uuid
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, ForeignKey, Numeric, SmallInteger, event, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column, relationship, sessionmaker

from optilock import (
    ConcurrencyError,
    PreconditionFailed,
    Versioned,
    apply,
    client_wins,
    etag_of,
    expect,
    is_transient,
    merge_fields,
    store_wins,
    touch,
    unit_of_work,
    verify,
    watch,
)
from optilock.leases import Leasable, LeaseHeld, LeaseLost, acquire, use
from optilock.resolvers import Resolution, add_delta, merge_text, per_field
from optilock.statements import no_bump
from optilock.testing import count_statements
from optilock.tokens import RowVersion, Timestamp, Unique
from optilock.unit.isolation import Isolation
from tests.support.models import Base, key
from tests.support.work import calls_of

WRITERS, EACH = 8, 10


class Liked(Versioned, Base):
    __tablename__ = "liked"
    __version_commutes__ = ("likes", "balance", "maybe")
    __version_ignore__ = ("views",)
    id: Mapped[int] = key()
    title: Mapped[str | None]
    likes: Mapped[int] = mapped_column("the likes", default=0)
    balance: Mapped[Decimal] = mapped_column(Numeric(12, 2), default=Decimal(0))
    maybe: Mapped[int | None]
    views: Mapped[int] = mapped_column(default=0)


class Likes(Versioned):
    """Rows that are liked; the classes differ in their version."""

    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    title: Mapped[str | None]
    likes: Mapped[int] = mapped_column(default=0)


class LikedUniquely(Likes, Base):
    __tablename__ = "liked_uniquely"
    __version_token__ = Unique()


class LikedInTime(Likes, Base):
    __tablename__ = "liked_in_time"
    __version_token__ = Timestamp()


class LikedByTrigger(Likes, Base):
    __tablename__ = "liked_by_trigger"
    __version_token__ = RowVersion()


class LikedWide(Versioned, Base):
    """Many digits, and few."""

    __tablename__ = "liked_wide"
    __version_commutes__ = ("long", "small")
    id: Mapped[int] = key()
    long: Mapped[Decimal] = mapped_column(Numeric(40, 2), default=Decimal(0))
    small: Mapped[int] = mapped_column(SmallInteger, default=0)


ALL = [Liked, LikedUniquely, LikedInTime, LikedByTrigger]
alive = pytest.mark.needs("resolves-in-place")
kinds = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


class LikedStock(Versioned, Base):
    """What is there cannot be less than nothing."""

    __tablename__ = "liked_stock"
    __version_commutes__ = ("pieces",)
    __table_args__ = (CheckConstraint("pieces >= 0", name="liked_stock_pieces"),)
    id: Mapped[int] = key()
    pieces: Mapped[int]


class LikedStockInTime(Versioned, Base):
    __tablename__ = "liked_stock_in_time"
    __version_token__ = Timestamp()
    __version_commutes__ = ("pieces",)
    __table_args__ = (CheckConstraint("pieces >= 0", name="liked_stock_in_time_pieces"),)
    id: Mapped[int] = key()
    pieces: Mapped[int]


class LikedDated(Versioned, Base):
    """Python fills a column in with each UPDATE."""

    __tablename__ = "liked_dated"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    likes: Mapped[int] = mapped_column(default=0)
    changed: Mapped[str | None] = mapped_column(onupdate=lambda: "now")


class LikedPost(Versioned, Base):
    """The parts of a root, and rows that only belong to it; a child table."""

    __tablename__ = "liked_posts"
    __version_commutes__ = ("likes",)
    __version_root_of__ = ("lines",)
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "post"}
    id: Mapped[int] = key()
    kind: Mapped[str]
    likes: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[LikedLine]] = relationship(back_populates="post")
    fans: Mapped[list[LikedFan]] = relationship()


class LikedVideo(LikedPost):
    __tablename__ = "liked_videos"
    __mapper_args__ = {"polymorphic_identity": "video"}
    id: Mapped[int] = mapped_column(ForeignKey(LikedPost.id), primary_key=True)
    length: Mapped[int | None]


class LikedLine(Base):
    __tablename__ = "liked_lines"
    id: Mapped[int] = key()
    post_id: Mapped[int] = mapped_column(ForeignKey(LikedPost.id))
    post: Mapped[LikedPost] = relationship(back_populates="lines")


class LikedFan(Base):
    __tablename__ = "liked_fans"
    id: Mapped[int] = key()
    post_id: Mapped[int] = mapped_column(ForeignKey(LikedPost.id))


class LikedLeased(Leasable, Versioned, Base):
    __tablename__ = "liked_leased"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    likes: Mapped[int] = mapped_column(default=0)


class LikedLeasedInTime(Leasable, Versioned, Base):
    __tablename__ = "liked_leased_in_time"
    __version_token__ = Timestamp()
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    likes: Mapped[int] = mapped_column(default=0)


class LikedCircle(Versioned, Base):
    """Its row is written twice in a flush (post_update)."""

    __tablename__ = "liked_circles"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    likes: Mapped[int] = mapped_column(default=0)
    best_id: Mapped[int | None] = mapped_column(ForeignKey("liked_circles.id"))
    best: Mapped[LikedCircle | None] = relationship(
        remote_side=[id], post_update=True, back_populates="rest"
    )
    rest: Mapped[list[LikedCircle]] = relationship(post_update=True, back_populates="best")


class LikedLink(Versioned, Base):
    """Its foreign key is written by the other side, after the row."""

    __tablename__ = "liked_links"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    likes: Mapped[int] = mapped_column(default=0)
    circle_id: Mapped[int | None] = mapped_column(ForeignKey("liked_ends.id"))


class LikedEnd(Base):
    __tablename__ = "liked_ends"
    id: Mapped[int] = key()
    links: Mapped[list[LikedLink]] = relationship(post_update=True)


# -- nothing is lost, and nothing conflicts --------------------------------------------------------


def crowd(engine: Any, add: Any) -> list[BaseException]:
    """Eight threads, each of which adds so often; what they raised."""
    errors: list[BaseException] = []
    ready = threading.Barrier(WRITERS)

    def once() -> None:
        while True:  # what was a lock's fault was not performed
            try:
                return add()
            except DBAPIError as error:
                if not is_transient(error):
                    raise

    def work() -> None:
        ready.wait()
        for _ in range(EACH):
            try:
                once()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def adding(engine: Any, kind: Any, keys: tuple[int, ...] = (1,)) -> Any:
    sessions = watch(sessionmaker(engine))

    def add() -> None:
        with sessions.begin() as session:
            rows = session.scalars(select(kind).where(kind.id.in_(keys)).order_by(kind.id)).all()
            for one in rows:
                one.likes += 1

    return add


@kinds
@pytest.mark.parametrize("keys", [(1,), (1, 2, 3)])
def test_eight_writers_add_and_none_of_them_conflicts(engine, store, stored, kind, keys):
    store(*(kind(id=number) for number in keys))
    before = {number: stored(kind, number)["version"] for number in keys}

    assert crowd(engine, adding(engine, kind, keys)) == []

    for number in keys:
        row = stored(kind, number)
        assert row["likes"] == WRITERS * EACH
        if kind is not LikedUniquely and kind is not LikedInTime:
            assert row["version"] == before[number] + WRITERS * EACH
        assert row["version"] != before[number]


def test_without_it_they_conflict(engine, store, stored, monkeypatch):
    """The test above would notice."""
    monkeypatch.setattr(
        "optilock._watched.guard.route.is_commuting_write", lambda flush, write: False
    )
    store(Liked(id=1))

    errors = crowd(engine, adding(engine, Liked))

    assert any(isinstance(error, ConcurrencyError) for error in errors)
    assert stored(Liked, 1)["likes"] == WRITERS * EACH - len(errors)


def test_one_row_is_one_statement_whoever_was_faster(engine, store, watched, other, stored):
    store(Liked(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10, title="theirs")
        liked.likes += 1
        with count_statements(engine) as sent:
            session.flush()
        assert sent.count == 1
        session.commit()
    assert stored(Liked, 1) | {"balance": None} == {
        "id": 1, "title": "theirs", "likes": 11, "balance": None, "maybe": None, "views": 0,
        "version": 3,
    }  # fmt: skip


def test_many_rows_are_written_as_ever_and_those_that_moved_once_more(
    engine, store, watched, other, stored
):
    store(*(Liked(id=number) for number in range(20)))
    with watched() as session:
        for liked in session.scalars(select(Liked)):
            liked.likes += 1
        with count_statements(engine) as alone:
            session.commit()
        for liked in session.scalars(select(Liked)):
            liked.likes += 1
        for number in range(10):
            other(Liked, number, likes=10, title="theirs")
        with count_statements(engine) as moved:
            session.commit()
    assert moved.count <= alone.count + 4
    assert {stored(Liked, number)["likes"] for number in range(10)} == {11}
    assert {stored(Liked, number)["likes"] for number in range(10, 20)} == {2}
    assert {stored(Liked, number)["version"] for number in range(10)} == {4}


def test_several_columns_and_ignored_ones_go_together(store, watched, other, stored):
    store(Liked(id=1, balance=Decimal("1.50"), maybe=5))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10, balance=Decimal("2.25"), maybe=7)
        liked.likes += 1
        liked.balance -= Decimal("0.75")
        liked.maybe += 1
        liked.views = 3
        session.commit()
    found = stored(Liked, 1)
    assert (found["likes"], found["balance"], found["maybe"]) == (11, Decimal("1.50"), 8)
    assert (found["views"], found["version"]) == (3, 3)


def test_rows_of_other_shapes_in_the_same_flush(store, watched, other, stored):
    store(Liked(id=1, title="a"), Liked(id=2, title="a"), Liked(id=3, title="a"))
    with watched() as session:
        one, two, three = session.scalars(select(Liked).order_by(Liked.id))
        other(Liked, 1, likes=10)
        one.likes += 1
        two.title = "b"
        three.likes, three.title = 3, "c"
        session.commit()
    assert stored(Liked, 1)["likes"] == 11
    assert stored(Liked, 2)["title"] == "b"
    assert (stored(Liked, 3)["likes"], stored(Liked, 3)["title"]) == (3, "c")


def test_with_new_rows_in_the_same_flush(store, watched, other, stored):
    store(LikedPost(id=1, kind="post"))
    with watched() as session:
        post = session.get_one(LikedPost, 1)
        other(LikedPost, 1, likes=10)
        post.fans.append(LikedFan(id=1))
        post.likes += 1
        session.commit()
    assert (stored(LikedPost, 1)["likes"], stored(LikedPost, 1)["version"]) == (11, 3)


def test_of_joined_tables_the_base_is_added_to(store, watched, other, stored):
    store(LikedVideo(id=1, length=1))
    with watched() as session:
        video = session.get_one(LikedVideo, 1)
        other(LikedVideo, 1, length=2, likes=10)
        video.likes += 1
        session.commit()
    assert (stored(LikedVideo, 1)["likes"], stored(LikedVideo, 1)["length"]) == (11, 2)
    with watched() as session:
        video = session.get_one(LikedVideo, 1)
        other(LikedVideo, 1, length=3)
        video.likes += 1
        video.length = 4
        with pytest.raises(ConcurrencyError):
            session.flush()


def test_what_python_fills_in_is_written(store, watched, other, stored):
    store(LikedDated(id=1, changed="then"))
    with watched() as session:
        dated = session.get_one(LikedDated, 1)
        other(LikedDated, 1, likes=10, changed="then")
        dated.likes += 1
        session.commit()
    assert (stored(LikedDated, 1)["likes"], stored(LikedDated, 1)["changed"]) == (11, "now")


# -- what the object has seen ----------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("rows", [1, 2])
def test_an_edit_after_the_sum_conflicts_with_what_others_did(
    store, watched, other, stored, kind, rows
):
    store(*(kind(id=number, title="a") for number in range(1, 1 + rows)))
    with watched() as session:
        liked, *others = session.scalars(select(kind).order_by(kind.id)).all()
        title, read = liked.title, liked.version
        other(kind, 1, title="theirs")
        for one in (liked, *others):
            one.likes += 1
        session.flush()
        assert (liked.version, liked.likes) == (read, 1)
        assert all(one.version != read for one in others) or kind is not Liked
        liked.title = title + "!"
        with pytest.raises(ConcurrencyError):
            session.flush()
        session.refresh(liked)
        assert (liked.title, liked.likes) == ("theirs", 1)
        liked.title = "mine"
        session.commit()
    assert (stored(kind, 1)["title"], stored(kind, 1)["likes"]) == ("mine", 1)


@kinds
def test_an_edit_after_the_sum_does_not_conflict_with_ourselves(store, watched, stored, kind):
    store(kind(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(kind, 1)
        read = liked.version
        liked.likes += 1
        session.flush()
        assert liked.version != read
        liked.title = "mine"
        session.flush()
        liked.likes += 1
        session.commit()
    assert (stored(kind, 1)["title"], stored(kind, 1)["likes"]) == ("mine", 2)


@kinds
def test_an_edit_after_the_commit_conflicts_unless_the_row_is_read(store, watched, other, kind):
    store(kind(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(kind, 1)
        other(kind, 1, title="theirs")
        liked.likes += 1
        session.commit()
        liked.title = "unread"
        with pytest.raises(ConcurrencyError):
            session.commit()
        session.rollback()
        assert liked.title == "theirs"
        liked.title = "read"
        session.commit()


@kinds
def test_sums_follow_sums(store, watched, other, stored, kind):
    store(kind(id=1))
    with watched() as session:
        liked = session.get_one(kind, 1)
        for _ in range(3):
            other(kind, 1, likes=stored(kind, 1)["likes"] + 10)
            liked.likes += 1
            session.flush()
            session.commit()
    assert stored(kind, 1)["likes"] == 33


def test_two_sums_of_one_transaction(store, watched, other, stored):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes += 1
        session.flush()
        liked.likes += 2
        session.commit()
    assert (stored(Liked, 1)["likes"], stored(Liked, 1)["version"]) == (13, 4)


@kinds
def test_a_savepoint_that_is_rolled_back_takes_the_sum_along(store, watched, other, stored, kind):
    store(kind(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(kind, 1)
        other(kind, 1, likes=10)
        savepoint = session.begin_nested()
        liked.likes += 1
        session.flush()
        savepoint.rollback()
        liked.title = "unread"
        with pytest.raises(ConcurrencyError):
            session.flush()
        session.refresh(liked)
        assert liked.likes in (0, 10)  # MariaDB shows the snapshot again
        liked.likes += 1
        session.rollback()
    assert stored(kind, 1)["likes"] == 10


def test_after_a_rollback_what_was_read_counts(store, watched, other, stored):
    store(Liked(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        liked.likes += 1
        session.flush()
        assert liked.version == 2
        session.rollback()
        liked.title = "unread, and nobody was there"
        session.commit()
        other(Liked, 1, title="theirs")
        liked.likes = 5  # set without having been read
        with pytest.raises(ConcurrencyError):
            session.commit()
    assert stored(Liked, 1)["likes"] == 0


@pytest.mark.parametrize("fast", [False, True])
def test_listeners_see_what_is_stored(store, watched, other, fast):
    store(Liked(id=1, title="a"))
    seen = []

    def after_update(mapper, connection, liked):
        seen.append((liked.likes, liked.version))

    event.listen(Liked, "after_update", after_update)
    try:
        with watched() as session:
            liked = session.get_one(Liked, 1)
            if fast:
                other(Liked, 1, likes=10)
                seen.clear()
            liked.likes += 1
            session.flush()
            assert seen == [(11, 3) if fast else (1, 2)]
            assert liked.version == (1 if fast else 2)
            session.commit()
    finally:
        event.remove(Liked, "after_update", after_update)


def test_a_foreign_key_that_is_written_later_conflicts(store, watched, other, refused, stored):
    store(LikedCircle(id=1), LikedCircle(id=2))
    with watched() as session:
        circle, best = session.get_one(LikedCircle, 1), session.get_one(LikedCircle, 2)
        other(LikedCircle, 1, likes=10)
        circle.likes += 1
        circle.best = best
        refused(session)
        session.rollback()
        circle.likes += 1
        circle.best = best
        session.commit()
    assert (stored(LikedCircle, 1)["likes"], stored(LikedCircle, 1)["best_id"]) == (11, 2)


@pytest.mark.parametrize("resolver", [None, merge_fields])
def test_so_does_one_that_the_other_side_writes(store, watched, other, stored, resolver):
    store(LikedEnd(id=1), LikedLink(id=1))
    with watched(on_conflict=resolver) as session:
        end, link = session.get_one(LikedEnd, 1), session.get_one(LikedLink, 1)
        assert end.links == []
        other(LikedLink, 1, likes=10)
        link.likes += 1
        end.links.append(link)
        if resolver is None:
            with pytest.raises(ConcurrencyError) as caught:
                session.flush()
            assert caught.value.entries[0].original["version"] == 1
            session.rollback()
            link.likes += 1
            end.links.append(link)
        session.flush()
        assert link.version == 4
        session.commit()
    assert (stored(LikedLink, 1)["likes"], stored(LikedLink, 1)["circle_id"]) == (11, 1)


# -- where the version counts as ever --------------------------------------------------------------


def test_another_column_beside_it_conflicts(store, watched, other, refused, stored):
    store(Liked(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes += 1
        liked.title = "mine"
        refused(session)
        session.rollback()
    with watched(on_conflict=per_field(likes=add_delta)) as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=20)
        liked.likes += 1
        liked.title = "mine"
        session.commit()
    assert (stored(Liked, 1)["likes"], stored(Liked, 1)["title"]) == (21, "mine")


def no_policy(entry):
    """A resolver of the application, which names nothing."""
    return Resolution.write()


RESOLVERS = [client_wins, store_wins, merge_fields, per_field(title=merge_text), no_policy]


@alive
@kinds
@pytest.mark.parametrize(
    "resolver", RESOLVERS, ids=lambda one: getattr(one, "__name__", "per_field")
)
@pytest.mark.parametrize("theirs", [1, 10])
def test_whatever_resolver_settles_the_other_column_the_sum_is_exact(
    store, watched, other, stored, kind, resolver, theirs
):
    """A2: equal changes of both sides, too, are two changes."""
    store(kind(id=1, title="a"), kind(id=2, title="a"))
    with watched(on_conflict=resolver) as session:
        first, second = session.scalars(select(kind).order_by(kind.id)).all()
        other(kind, 1, likes=theirs)
        other(kind, 2, likes=theirs)
        first.likes += 1
        second.likes += 1
        first.title = second.title = "mine"
        session.flush()
        assert (first.likes, second.likes) == (theirs + 1, theirs + 1)
        first.likes += 1  # in another flush of the same unit
        session.commit()
        assert first.likes == theirs + 2
    title = "a" if resolver is store_wins else "mine"
    assert (stored(kind, 1)["likes"], stored(kind, 1)["title"]) == (theirs + 2, title)
    assert (stored(kind, 2)["likes"], stored(kind, 2)["title"]) == (theirs + 1, title)


@alive
@pytest.mark.parametrize(
    "resolver", RESOLVERS, ids=lambda one: getattr(one, "__name__", "per_field")
)
def test_so_it_is_in_a_savepoint_and_after_one(store, watched, other, stored, resolver):
    """A2"""
    store(Liked(id=1, title="a"))
    with watched(on_conflict=resolver) as session:
        liked = session.get_one(Liked, 1)
        assert liked.likes == 0
        other(Liked, 1, likes=1)
        with pytest.raises(KeyError), session.begin_nested():
            liked.likes += 1
            liked.title = "undone"
            session.flush()
            raise KeyError
        with session.begin_nested():
            liked.likes += 1
            liked.title = "mine"
        liked.likes += 1
        session.commit()
    assert stored(Liked, 1)["likes"] == 3


@alive
def test_a_touch_or_a_version_held_still_beside_it_merges_to_the_sum(store, watched, other, stored):
    """A2"""
    store(Liked(id=1), Liked(id=2))
    with watched(on_conflict=merge_fields) as session:
        first, second = session.scalars(select(Liked).order_by(Liked.id)).all()
        other(Liked, 1, likes=1)
        other(Liked, 2, likes=1)
        first.likes += 1
        touch(first)
        session.flush()
        with no_bump(session):
            second.likes += 1
            session.flush()
        session.commit()
    assert (stored(Liked, 1)["likes"], stored(Liked, 2)["likes"]) == (2, 2)


def test_a_refused_edit_is_done_again_on_a_fresh_object(store, watched, other, stored):
    """A2: the entry says what was added, and adds it."""
    store(Liked(id=1, title="a"))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=1)
        liked.likes += 1
        liked.title = "mine"
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
        [entry] = pickle.loads(pickle.dumps(caught.value)).entries
        assert (dict(entry.added), entry.conflicting) == ({"likes": 1}, frozenset())
        session.rollback()
        entry.apply_to(session.get_one(Liked, 1, populate_existing=True))
        session.commit()
    assert (stored(Liked, 1)["likes"], stored(Liked, 1)["title"]) == (2, "mine")


@alive
def test_what_a_resolver_names_is_what_it_gets(store, watched, other, stored):
    """A2: a policy sees the three values, and says what the fourth is."""
    store(Liked(id=1, title="a"), Liked(id=2, title="a"))
    for number, resolver, total in (
        (1, per_field(likes=max), 10),
        (2, lambda entry: Resolution.write({"likes": 7}), 7),
    ):
        with watched(on_conflict=resolver) as session:
            liked = session.get_one(Liked, number)
            other(Liked, number, likes=10)
            liked.likes += 1
            liked.title = "mine"
            session.commit()
        assert (stored(Liked, number)["likes"], stored(Liked, number)["title"]) == (total, "mine")


@pytest.mark.parametrize(
    "resolver", RESOLVERS[:-1], ids=lambda one: getattr(one, "__name__", "per_field")
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "adaptive"},
        {"strategy": "pessimistic"},
        pytest.param({"pipelined": True}, marks=pytest.mark.engines("postgresql")),
    ],
    ids=str,
)
def test_concurrent_increments_beside_a_column_add_up(engine, store, stored, resolver, options):
    """A2: each strategy, run again where it has to be."""
    store(Liked(id=1, title="a"))
    sessions = watch(sessionmaker(engine))

    @unit_of_work(sessions, attempts=50, on_conflict=resolver, **options)
    def like(session, number, beside):
        liked = session.get_one(Liked, 1)
        liked.likes += 1
        if beside and number % 2:
            liked.title = uuid.uuid4().hex[:20]  # another one each time
            session.flush()
            liked.likes += 1

    def some(number):
        for one in range(EACH):
            like(4 * number + one, number % 2 == 0)

    writers = [threading.Thread(target=some, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert stored(Liked, 1)["likes"] == 4 * EACH + 2 * (EACH // 2)


def test_a_row_that_is_gone_is_a_conflict(store, watched, gone, stored):
    store(Liked(id=1), Liked(id=2), Liked(id=3))
    for number, resolver in ((1, None), (2, store_wins), (3, client_wins)):
        with watched(on_conflict=resolver) as session:
            liked = session.get_one(Liked, number)
            assert (liked.title, liked.balance, liked.maybe, liked.views) is not None
            gone(Liked, number)
            liked.likes += 1
            if resolver is None:
                with pytest.raises(ConcurrencyError) as caught:
                    session.flush()
                assert caught.value.entries[0].kind == "deleted"
                session.rollback()
            else:
                session.commit()
    assert stored(Liked, 2) is None
    assert stored(Liked, 3)["likes"] == 1


@pytest.mark.parametrize("before", [None, 5])
def test_null_is_nothing_to_add_to(store, watched, other, refused, stored, before):
    store(Liked(id=1, maybe=before))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, maybe=7 if before is None else None)
        liked.maybe = (liked.maybe or 0) + 1
        refused(session)
        session.rollback()
    assert stored(Liked, 1)["maybe"] == (7 if before is None else None)


def test_an_expression_is_written_under_the_version(store, watched, other, refused):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes = Liked.likes + 1
        refused(session)
        session.rollback()


def test_what_was_never_read_has_no_difference(store, watched, other, refused):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        session.expire(liked, ["likes"])
        other(Liked, 1, likes=10)
        liked.likes = 7
        refused(session)
        session.rollback()


@pytest.mark.parametrize("value", [True, 1.5, Decimal("NaN")])
def test_other_kinds_of_numbers_have_none_either(store, watched, other, value):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes = value
        with pytest.raises((ConcurrencyError, DBAPIError)):
            session.flush()
        session.rollback()


LONG = Decimal("12345678901234567890123456789012345.01")


@pytest.mark.engines("postgresql", "mariadb")  # SQLite keeps floating-point numbers
@pytest.mark.parametrize("rows", [1, 2])
def test_no_digit_of_a_sum_is_rounded(store, watched, other, stored, rows):
    store(LikedWide(id=1), LikedWide(id=2))
    session = watched()
    mine = [session.get_one(LikedWide, n + 1) for n in range(rows)]
    other(LikedWide, 1, long=Decimal("0.01"))
    for one in mine:
        one.long = LONG
    session.commit()
    assert stored(LikedWide, 1)["long"] == Decimal("12345678901234567890123456789012345.02")


def test_a_difference_may_be_more_than_the_column_can_hold(store, watched, stored):
    store(LikedWide(id=1, small=30_000))
    session = watched()
    session.get_one(LikedWide, 1).small = -30_000
    session.commit()
    assert stored(LikedWide, 1)["small"] == -30_000


def test_expect_and_verify_hold(store, watched, other, stored):
    store(Liked(id=1))
    for promise in (lambda liked: expect(liked, etag_of(liked)), verify):
        with watched(on_conflict=client_wins) as session:
            liked = session.get_one(Liked, 1)
            promise(liked)
            other(Liked, 1, likes=stored(Liked, 1)["likes"] + 10)
            liked.likes += 1
            with pytest.raises(ConcurrencyError) as caught:
                session.flush()
            assert isinstance(caught.value, PreconditionFailed) is (promise is not verify)
            session.rollback()
    assert stored(Liked, 1)["likes"] == 20


def test_verify_after_a_sum_sees_who_was_faster(store, watched, other):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes += 1
        session.flush()
        verify(liked)
        with pytest.raises(ConcurrencyError):
            session.commit()
        session.rollback()
        liked.likes += 1
        session.flush()
        verify(liked)
        session.commit()


def test_verify_of_what_was_read_again_after_a_sum(store, watched, other, stored):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes += 1
        session.flush()
        session.refresh(liked)
        verify(liked)
        liked.title = "mine"
        session.commit()
    assert (stored(Liked, 1)["likes"], stored(Liked, 1)["version"]) == (11, 4)


def test_apply_with_a_tag_is_no_sum(store, watched, other, stored):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        tag = etag_of(liked)
        other(Liked, 1, likes=10)
        with pytest.raises(PreconditionFailed):
            apply(session, Liked, 1, {"likes": 1}, expected=tag)
            session.commit()
    assert stored(Liked, 1)["likes"] == 10


def test_a_touch_beside_it_is_checked(store, watched, other, refused):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        other(Liked, 1, likes=10)
        liked.likes += 1
        touch(liked)
        refused(session)
        session.rollback()


def test_a_part_of_the_root_beside_it_is_checked(store, watched, other, refused):
    store(LikedPost(id=1, kind="post"))
    with watched() as session:
        post = session.get_one(LikedPost, 1)
        other(LikedPost, 1, likes=10)
        post.likes += 1
        post.lines.append(LikedLine(id=1))
        refused(session)
        session.rollback()


def test_under_no_bump_the_version_is_checked_and_stays(store, watched, other, stored):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        with no_bump(session):
            liked.likes += 1
        session.commit()
        assert (stored(Liked, 1)["likes"], stored(Liked, 1)["version"]) == (1, 1)
        assert liked.likes == 1
        other(Liked, 1, likes=10)
        with pytest.raises(ConcurrencyError), no_bump(session):
            liked.likes += 1
        session.rollback()


def test_a_statement_moves_the_object_along(store, watched, stored):
    store(Liked(id=1))
    with watched() as session:
        liked = session.get_one(Liked, 1)
        liked.likes += 1
        session.execute(update(Liked).where(Liked.id == 1).values(title="b"))
        liked.likes += 1
        session.commit()
    assert (stored(Liked, 1)["likes"], stored(Liked, 1)["version"]) == (2, 4)


leased = pytest.mark.parametrize("kind", [LikedLeased, LikedLeasedInTime])


@leased
@pytest.mark.parametrize("rows", [1, 2])
def test_the_lease_of_somebody_else_holds(engine, store, watched, stored, kind, rows):
    store(*(kind(id=number) for number in range(1, 1 + rows)))
    with watched() as session:
        liked = session.scalars(select(kind)).all()
        with watch(sessionmaker(engine))() as holder:
            lease = acquire(holder, (kind, 1), 60)
            use(holder, lease)
            holder.get_one(kind, 1).likes += 10
            holder.commit()
            for one in liked:
                one.likes += 1
            with pytest.raises(LeaseHeld):
                session.flush()
            session.rollback()
            holder.get_one(kind, 1).likes += 1
            holder.commit()
    assert stored(kind, 1)["likes"] == 11


@leased
def test_whose_lease_has_ended_adds_nothing(engine, store, watched, stored, kind):
    store(kind(id=1))
    ended = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    with watched() as session:
        use(session, acquire(session, (kind, 1), 60))
        session.commit()
        liked = session.get_one(kind, 1)
        with engine.begin() as connection:
            connection.execute(update(kind.__table__).values(likes=10, lease_until=ended))
        liked.likes += 1
        with pytest.raises(LeaseLost):
            session.flush()
        session.rollback()
    assert stored(kind, 1)["likes"] == 10


@leased
def test_the_holder_of_a_lease_adds_after_others_have(engine, store, watched, stored, kind):
    store(kind(id=1))
    with watched() as session:
        liked = session.get_one(kind, 1)
        with watch(sessionmaker(engine)).begin() as first:
            first.get_one(kind, 1).likes += 10
        lease = acquire(session, (kind, 1), 60)
        use(session, lease)
        liked.likes += 1
        session.commit()
    assert stored(kind, 1)["likes"] == 11


# -- what the database refuses ---------------------------------------------------------------------


def take(session: Any, pieces: int) -> None:
    stock = session.get_one(LikedStock, 1)
    if stock.pieces < pieces:
        raise ValueError("sold out")
    stock.pieces -= pieces


@pytest.mark.parametrize("kind", [LikedStock, LikedStockInTime])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_sum_that_a_check_refuses_is_a_conflict_that_says_so(
    engine, store, watched, other, stored, rows, kind
):
    store(*(kind(id=number, pieces=5) for number in range(1, 1 + rows)))
    with watched() as session:
        stocks = session.scalars(select(kind)).all()
        other(kind, 1, pieces=1)
        for stock in stocks:
            stock.pieces -= 3
        with pytest.raises(ConcurrencyError, match="changed by another transaction") as caught:
            session.flush()
        assert isinstance(caught.value.__cause__, DBAPIError)
        (entry,) = caught.value.entries
        assert (entry.original["pieces"], entry.current["pieces"]) == (5, 2)
        assert entry.database["pieces"] == 1
        assert "__version_commutes__" in " ".join(caught.value.__notes__)
        session.rollback()
        assert [stock.pieces for stock in stocks] == [1, 5][:rows]
    assert stored(kind, 1)["pieces"] == 1


def test_a_check_that_the_program_alone_breaks_stays_the_drivers_error(store, watched):
    store(LikedStock(id=1, pieces=5))
    with watched() as session:
        session.get_one(LikedStock, 1).pieces -= 6
        with pytest.raises(DBAPIError):
            session.flush()
        session.rollback()


def test_a_unit_that_is_run_again_decides_anew(engine, store, other, stored):
    store(LikedStock(id=1, pieces=5))
    runs = []

    @unit_of_work(sessionmaker(engine))
    def sell(session):
        runs.append(session.get_one(LikedStock, 1).pieces)
        take(session, 3)
        if len(runs) == 1:
            other(LikedStock, 1, pieces=1)

    with pytest.raises(ValueError, match="sold out"):
        sell()
    assert runs == [5, 1]


def test_another_error_of_the_flush_stays_what_it_is(store, watched, other):
    store(LikedPost(id=1, kind="post"), LikedFan(id=1, post_id=1))
    with watched() as session:
        post = session.get_one(LikedPost, 1)
        other(LikedPost, 1, likes=10)
        post.likes += 1
        session.add(LikedFan(id=1, post_id=1))
        with pytest.raises(DBAPIError):
            session.flush()
        session.rollback()


# -- levels at which the database itself ends the transaction --------------------------------------


@pytest.mark.modes
@pytest.mark.engines("postgresql", "mariadb", "mariadb-snapshot")
def test_where_the_database_ends_the_transaction_it_is_run_again(engine, store, other, stored):
    """REPEATABLE READ of PostgreSQL, and MariaDB with snapshot isolation."""
    store(Liked(id=1))
    runs = []

    @unit_of_work(sessionmaker(engine), isolation=Isolation.REPEATABLE_READ)
    def like(session):
        liked = session.get_one(Liked, 1)
        runs.append(liked.likes)
        if len(runs) == 1:
            other(Liked, 1, likes=10)
        liked.likes += 1

    like()
    assert stored(Liked, 1)["likes"] == 11
    assert runs == ([0, 10] if engine.dialect.name == "postgresql" else runs)


# -- async, and what it costs ----------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("expire", [True, False])
async def test_async_sessions_add_too(async_engine, expire, async_store):
    async_store(Liked(id=1, title="a"), LikedStock(id=1, pieces=5))
    sessions = watch(async_sessionmaker(async_engine, expire_on_commit=expire))
    async with sessions() as session:
        liked, stock = await session.get_one(Liked, 1), await session.get_one(LikedStock, 1)
        async with AsyncSession(async_engine) as other, other.begin():
            (await other.get_one(Liked, 1)).likes = 10
            (await other.get_one(LikedStock, 1)).pieces = 1
        liked.likes += 1
        await session.flush()
        assert (liked.version, liked.title) == (1, "a")
        await session.commit()
        assert (await session.get_one(Liked, 1, populate_existing=True)).likes == 11
        if not expire:  # it is held as it was read
            stock.pieces -= 3
            with pytest.raises(ConcurrencyError):
                await session.flush()
            await session.rollback()


class LikedOnly(Versioned, Base):
    __tablename__ = "liked_only"
    __version_commutes__ = ("likes",)
    id: Mapped[int] = key()
    title: Mapped[str | None]
    likes: Mapped[int] = mapped_column(default=0)


class LikedFree(Versioned, Base):
    """A class that names no such column."""

    __tablename__ = "liked_free"
    id: Mapped[int] = key()
    title: Mapped[str | None]
    likes: Mapped[int] = mapped_column(default=0)


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("rows", [1, 100])
def test_whoever_writes_other_rows_pays_nothing(engine, store, rows):
    store(*(LikedFree(id=number, title="") for number in range(rows)))
    store(*(LikedOnly(id=number, title="") for number in range(rows)))
    sessions = watch(sessionmaker(engine))

    def writing(kind: Any) -> int:
        def work() -> None:
            with sessions.begin() as session:
                for row in session.scalars(select(kind)):
                    row.title += "x"

        work()
        return min(len(calls_of(work)) for _ in range(5))

    assert writing(LikedOnly) == writing(LikedFree)


def test_statements_are_made_once(engine, store, watched):
    store(Liked(id=1))
    made: set[int] = set()
    with watched() as session:
        liked = session.get_one(Liked, 1)
        for _ in range(3):
            with count_statements(engine) as sent:
                liked.likes += 1
                session.flush()
            made |= {len(sent.statements)}
    assert made == {1}
