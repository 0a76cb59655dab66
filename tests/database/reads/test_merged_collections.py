"""A merge does not take out of a collection what the author of the copy has not seen in it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import ConcurrencyError, Versioned
from optilock.testing import count_statements
from tests.support.models import Base, Comment, Player, Post, Tag, Team, key, post_tags
from tests.support.two_writers import Do


class Desk(Versioned, Base):
    """One row at the other end, and rows without a version."""

    __tablename__ = "desks"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    lamp: Mapped[Lamp | None] = relationship(cascade="all, delete-orphan", back_populates="desk")
    cups: Mapped[list[Cup]] = relationship(
        cascade="all, delete-orphan", back_populates="desk", order_by="Cup.id"
    )
    pens: Mapped[list[Pen]] = relationship(cascade="all, delete-orphan")


class Lamp(Versioned, Base):
    __tablename__ = "lamps"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    desk_id: Mapped[int] = mapped_column(ForeignKey("desks.id"))
    desk: Mapped[Desk] = relationship(back_populates="lamp")


class Cup(Versioned, Base):
    __tablename__ = "cups"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    desk_id: Mapped[int] = mapped_column(ForeignKey("desks.id"))
    desk: Mapped[Desk] = relationship(back_populates="cups")


class Pen(Base):
    __tablename__ = "pens"
    id: Mapped[int] = key()
    desk_id: Mapped[int] = mapped_column(ForeignKey("desks.id"))


@pytest.fixture
def copy_of(engine: Engine) -> Do:
    def copy_of(model: type[Any], *loaded: str) -> Any:
        with Session(engine) as session:
            found = session.get_one(model, 1)
            for name in loaded:
                getattr(found, name)
            return pickle.loads(pickle.dumps(found))

    return copy_of


@pytest.fixture
def post(store: Do) -> None:
    store(Post(id=1, title="a", comments=[Comment(id=1), Comment(id=2)], tags=[Tag(id=1)]))
    store(Post(id=2, comments=[Comment(id=9)]), Tag(id=2))


def refused_merge(session: Session, copy: Any) -> ConcurrencyError:
    with pytest.raises(ConcurrencyError) as caught:
        session.merge(copy)
    assert not session.new
    assert not session.dirty
    session.commit()
    return caught.value


def by_insert(engine: Engine, session: Session) -> None:
    with Session(engine) as theirs, theirs.begin():
        theirs.add(Comment(id=3, text="theirs", post_id=1))


def by_moving(engine: Engine, session: Session) -> None:
    with Session(engine) as theirs, theirs.begin():
        theirs.get_one(Comment, 9).post_id = 1


@pytest.mark.parametrize("add", [by_insert, by_moving])
@pytest.mark.parametrize("held", [True, False], ids=["in-the-session", "read-by-merge"])
def test_a_child_that_somebody_else_has_added_is_not_deleted(
    post: None, watched: Do, copy_of: Do, stored: Do, engine: Engine, add: Do, held: bool
) -> None:
    copy = copy_of(Post, "comments")
    copy.title = "mine"
    session = watched()
    add(engine, session)
    mine = session.get_one(Post, 1) if held else None
    assert mine is None or len(mine.comments) == 3
    error = refused_merge(session, copy)
    (entry,) = error.entries
    new = 3 if add is by_insert else 9
    assert (entry.model, entry.identity, entry.action) == (Comment, (new,), "delete")
    assert entry.database is not None
    assert entry.database["post_id"] == 1
    assert f"Post 1.comments holds Comment {new}" in str(error)
    assert (stored(Post, 1)["title"], stored(Comment, new)["post_id"]) == ("a", 1)


def test_what_the_merge_had_taken_out_is_no_orphan_afterwards(
    post: None, watched: Do, copy_of: Do, stored: Do, engine: Engine
) -> None:
    """Neither the member that was not seen, nor the one that the copy had removed."""
    copy = copy_of(Post, "comments")
    copy.comments.remove(copy.comments[0])
    session = watched()
    by_insert(engine, session)
    comments = session.scalars(select(Comment).order_by(Comment.id)).all()
    refused_merge(session, copy)
    for comment in comments:
        comment.text = "edited"
    session.commit()
    assert [stored(Comment, n)["text"] for n in (1, 3)] == ["edited", "edited"]
    assert [comment.post_id for comment in comments] == [1, 1, 1, 2]


@pytest.mark.parametrize("stale", [Lamp, Cup])
def test_one_stale_copy_takes_back_what_was_taken_out_before(
    store: Do, watched: Do, copy_of: Do, engine: Engine, stored: Do, stale: Any
) -> None:
    """And it is no orphan either when it is edited later."""
    store(Desk(id=1, lamp=Lamp(id=1, name="a"), cups=[Cup(id=1, name="a"), Cup(id=2, name="a")]))
    copy = copy_of(Desk, "lamp", "cups")
    if stale is Lamp:
        copy.cups.remove(copy.cups[1])
    else:
        copy.lamp = None
    with Session(engine) as theirs, theirs.begin():
        theirs.get_one(stale, 1).name = "theirs"
    session = watched()
    rows = [session.get_one(Lamp, 1), *session.scalars(select(Cup).order_by(Cup.id))]
    (entry,) = refused_merge(session, copy).entries
    assert (entry.model, entry.identity) == (stale, (1,))
    for row in rows:
        row.name = "edited"
    session.commit()
    assert [stored(type(row), row.id)["desk_id"] for row in rows] == [1, 1, 1]


def test_a_child_that_would_lose_its_parent_is_an_update(
    store: Do, watched: Do, copy_of: Do, stored: Do
) -> None:
    store(Team(id=1, name="a", players=[Player(id=1)]))
    copy = copy_of(Team, "players")
    store(Player(id=2, team_id=1))
    (entry,) = refused_merge(watched(), copy).entries
    assert (entry.model, entry.identity, entry.action) == (Player, (2,), "update")
    assert stored(Player, 2)["team_id"] == 1


def test_a_link_that_somebody_else_has_added_is_not_removed(
    post: None, watched: Do, copy_of: Do, engine: Engine
) -> None:
    """The entry is that of the row whose links they are."""
    copy = copy_of(Post, "tags")
    with engine.begin() as theirs:
        theirs.execute(post_tags.insert(), [{"post_id": 1, "tag_id": 2}])
    error = refused_merge(watched(), copy)
    assert [(entry.model, entry.identity) for entry in error.entries] == [(Post, (1,))]
    assert "Post 1.tags holds Tag 2" in str(error)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(post_tags)) == 2


@pytest.mark.parametrize("name", ["lamp", "pens"])
def test_neither_is_a_single_row_or_one_without_a_version(
    store: Do, watched: Do, copy_of: Do, stored: Do, name: str
) -> None:
    model = {"lamp": Lamp, "pens": Pen}[name]
    store(Desk(id=1))
    copy = copy_of(Desk, name)
    store(model(id=1, desk_id=1))
    (entry,) = refused_merge(watched(), copy).entries
    assert entry.model is (Lamp if name == "lamp" else Desk)
    assert stored(model, 1) is not None


def test_what_the_author_has_seen_may_be_taken_out_and_added_to(
    post: None, watched: Do, copy_of: Do, stored: Do
) -> None:
    copy = copy_of(Post, "comments", "tags")
    copy.comments.remove(copy.comments[0])
    copy.comments.append(Comment(id=3, text="new"))
    copy.tags.clear()
    session = watched()
    session.merge(copy)
    session.commit()
    assert [bool(stored(Comment, n)) for n in (1, 2, 3)] == [False, True, True]
    assert session.get_one(Post, 1).tags == []


def test_what_the_session_itself_has_taken_out_is_its_own(
    post: None, watched: Do, copy_of: Do, stored: Do, engine: Engine
) -> None:
    copy = copy_of(Post, "comments")
    session = watched(autoflush=False)
    by_insert(engine, session)
    mine = session.get_one(Post, 1)
    mine.comments.remove(mine.comments[2])
    session.merge(copy)
    session.commit()
    assert stored(Comment, 3) is None


def test_a_new_object_says_make_it_so(post: None, watched: Do, stored: Do) -> None:
    session = watched()
    session.merge(Post(id=1, comments=[Comment(id=1)]))
    session.commit()
    assert stored(Comment, 2) is None


def test_to_look_sends_nothing(post: None, watched: Do, copy_of: Do, engine: Engine) -> None:
    copy = copy_of(Post, "comments", "tags")
    with Session(engine) as plain, count_statements(engine) as as_without:
        plain.merge(copy)
    session = watched()
    with count_statements(engine) as sent:
        session.merge(copy)
    assert sent.count == as_without.count
