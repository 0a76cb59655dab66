"""A unit on a scoped session that has a session already: whose objects are changed inside?"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    scoped_session,
    sessionmaker,
)

from optilock import ConfigurationError, UnitOfWork, Versioned, unit_of_work, watch
from optilock.unit.async_unit import AsyncUnitOfWork


class Base(DeclarativeBase):
    pass


class User(Versioned, Base):
    __tablename__ = "beside_users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))
    data: Mapped[dict[str, Any]] = mapped_column(MutableDict.as_mutable(JSON), default=dict)
    posts: Mapped[list[Post]] = relationship(order_by="Post.id")


class Post(Base):
    __tablename__ = "beside_posts"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("beside_users.id"))


_scope: contextvars.ContextVar[int] = contextvars.ContextVar("scope", default=0)


@pytest.fixture(params=["threads", "context", "watched"])
def db(request, engine, store) -> Iterator[scoped_session[Session]]:
    """Like Flask-SQLAlchemy's ``db.session``: one session a request."""
    store(User(id=1, name="Ada", data={"a": 1}, posts=[Post(id=1)]), User(id=2, name="Bob"))
    made = scoped_session(
        sessionmaker(engine), scopefunc=_scope.get if request.param == "context" else None
    )
    yield watch(made) if request.param == "watched" else made
    made.remove()


refusal = pytest.raises(ConfigurationError, match="objects of another session were changed")


def names(engine):
    with Session(engine) as session:
        return [user.name for user in session.query(User).order_by(User.id)]


def read(db: Any) -> User:
    """An object of the request's session, with what it refers to."""
    user = db.get(User, 1)
    assert user.posts
    assert user.data
    db.rollback()
    assert user.name
    return user


def test_an_edit_of_the_other_session_is_refused_and_the_unit_stores_nothing(db, engine):
    user = read(db)
    with refusal as caught, UnitOfWork(db) as session:
        session.get_one(User, 2).name = "Bea"
        user.name = "Grace"

    assert "User (1,)" in str(caught.value)
    assert "Grace" not in str(caught.value)
    assert user.name == "Grace"
    assert user in db.dirty
    db.rollback()
    assert names(engine) == ["Ada", "Bob"]


@pytest.mark.parametrize(
    "change",
    [
        lambda user, outer: outer.delete(user),
        lambda user, outer: outer.add(User(id=3, name="Cid")),
        lambda user, outer: user.posts.append(Post(id=3)),
        lambda user, outer: user.data.update(a=2),
    ],
    ids=["delete", "add", "collection", "mutable"],
)
def test_every_kind_of_change_is_seen(db, change):
    user, outer = read(db), db()
    with refusal, UnitOfWork(db):
        change(user, outer)


def test_a_decorated_function_is_refused_once(db):
    user, calls = read(db), []

    @unit_of_work(db, attempts=3)
    def rename(session: Session) -> None:
        calls.append(session)
        user.name = "Grace"

    with refusal:
        rename()
    assert len(calls) == 1


def test_what_was_pending_before_and_did_not_change_is_no_matter(db, engine):
    user, outer = read(db), db()
    user.name = "Grace"
    user.data["b"] = 2
    outer.add(Post(id=7))
    with UnitOfWork(db) as session:
        session.get_one(User, 2).name = "Bea"
        assert user.name == "Grace"
    outer.commit()
    assert names(engine) == ["Grace", "Bea"]


@pytest.mark.parametrize(
    "change", [lambda user: setattr(user, "name", "Eve"), lambda user: user.data.update(b=3)]
)
def test_what_was_pending_before_and_changed_again_is_refused(db, change):
    user = read(db)
    user.name = "Grace"
    user.data["b"] = 2
    with refusal, UnitOfWork(db):
        change(user)


def test_reading_and_setting_the_same_value_is_no_change(db, engine):
    user = read(db)
    with UnitOfWork(db) as session:
        session.get_one(User, 2).name = "Bea"
        user.name = str(user.name)
    assert names(engine) == ["Ada", "Bea"]


@pytest.mark.engines("postgresql", "mariadb")
def test_an_edit_that_autoflush_has_written_is_refused(db, engine):
    """It is in the transaction of the other session, which nobody need commit."""
    user, outer = read(db), db()
    outer.expire(user, ["posts"])
    with refusal, UnitOfWork(db) as session:
        session.get_one(User, 2).name = "Bea"
        user.name = "Grace"
        assert user.posts
        assert user not in outer.dirty
    db.rollback()
    assert names(engine) == ["Ada", "Bob"]


@pytest.mark.engines("postgresql", "mariadb")
def test_an_autoflush_of_what_was_pending_before_is_no_change(db, engine):
    user, outer = read(db), db()
    outer.expire(user, ["posts"])
    user.name = "Grace"
    with UnitOfWork(db) as session:
        session.get_one(User, 2).name = "Bea"
        assert user.posts
    outer.commit()
    assert names(engine) == ["Grace", "Bea"]


def test_what_the_other_session_has_committed_inside_is_stored(db, engine):
    user, outer = read(db), db()
    with UnitOfWork(db) as session:
        user.name = "Grace"
        outer.commit()
        session.get_one(User, 2).name = "Bea"
    assert names(engine) == ["Grace", "Bea"]


def test_an_independent_unit_may_change_objects_of_the_unit_around_it(db, engine):
    """That unit stores them."""
    with UnitOfWork(db) as session:
        user = session.get_one(User, 1)
        with UnitOfWork(db, propagation="independent"):
            user.name = "Grace"
    assert names(engine) == ["Grace", "Bob"]


def test_the_requests_objects_count_for_inner_units_as_well(db, engine):
    user = read(db)
    with refusal, UnitOfWork(db), UnitOfWork(db, propagation="independent"):
        user.name = "Grace"
    with refusal, UnitOfWork(db), UnitOfWork(db, propagation="savepoint"):
        user.name = "Eve"


def test_an_error_of_the_body_goes_its_way(db):
    user = read(db)
    with pytest.raises(ZeroDivisionError), UnitOfWork(db):
        user.name = "Grace"
        raise ZeroDivisionError


def test_the_next_unit_is_compared_with_its_own_beginning(db, engine):
    user = read(db)
    with refusal, UnitOfWork(db):
        user.name = "Grace"
    with UnitOfWork(db) as session:
        session.get_one(User, 2).name = "Bea"
    db.rollback()
    assert names(engine) == ["Ada", "Bea"]


@pytest.mark.anyio
async def test_async_scoped_sessions_as_well(async_engine, async_store):
    async_store(User(id=1, name="Ada"), User(id=2, name="Bob"))
    db = async_scoped_session(async_sessionmaker(async_engine), scopefunc=_scope.get)
    try:
        user = await db.get(User, 1)
        with refusal:
            async with AsyncUnitOfWork(db) as session:
                user.name = "Grace"
        await db.rollback()
        async with AsyncUnitOfWork(db) as session:
            (await session.get_one(User, 2)).name = "Bea"
    finally:
        await db.remove()
