"""A listener that flushes a session of its own on the connection of the session that flushes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from optilock import Versioned, watch
from optilock.resolvers import OnDelete
from optilock.resolvers.rules import client_wins
from optilock.testing import count_statements
from tests.support.models import Account, Base, Comment, Note, Page, Post, key

pytestmark = pytest.mark.modes


class Trail(Base):
    __tablename__ = "nested_trails"
    id: Mapped[int] = key()
    text: Mapped[str | None]


class Tally(Versioned, Base):
    __tablename__ = "nested_tallies"
    id: Mapped[int] = key()
    count: Mapped[int]


Inner = Callable[..., Session]


@pytest.fixture
def inner() -> Iterator[Inner]:
    """A watched session on a connection."""
    sessions = watch(sessionmaker())
    with ExitStack() as stack:
        yield lambda connection, **options: stack.enter_context(
            sessions(bind=connection, **options)
        )


@contextmanager
def hearing(cls: type[Any], name: str, listener: Callable[..., None]) -> Iterator[None]:
    event.listen(cls, name, listener)
    try:
        yield
    finally:
        event.remove(cls, name, listener)


def accounts(store: Any, number: int = 3) -> None:
    store(*(Account(id=n, owner="a") for n in range(1, number + 1)))
    store(Tally(id=1, count=0), Tally(id=2, count=0), Note(id=1, text="a"))


def edit(session: Session, owner: str = "mine", keys: tuple[int, ...] = (1, 2, 3)) -> list[Account]:
    found = session.scalars(select(Account).where(Account.id.in_(keys)).order_by(Account.id)).all()
    for account in found:
        account.owner = owner
    return list(found)


def count_in(inner: Inner) -> Callable[..., None]:
    """Counts each update, in a session of its own."""

    def count(mapper: Any, connection: Any, target: Any) -> None:
        session = inner(connection)
        for tally in session.scalars(select(Tally).order_by(Tally.id)):
            tally.count += 1
        session.flush()

    return count


def test_a_listener_flushes_a_watched_session_of_its_own(store, watched, inner, stored):
    accounts(store)
    session = watched()
    edit(session)
    with hearing(Account, "after_update", count_in(inner)):
        session.commit()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3)] == ["mine"] * 3
    assert [stored(Tally, n)["count"] for n in (1, 2)] == [3, 3]


def test_the_session_goes_on_afterwards(store, watched, inner, stored):
    """Its connection answers for itself again, and its next flush is guarded."""
    accounts(store)
    session = watched(client_wins)
    mine = edit(session)
    with hearing(Account, "after_update", count_in(inner)):
        session.flush()
    for account in mine:
        account.owner = "again"
    session.commit()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3)] == ["again"] * 3
    assert [stored(Account, n)["version"] for n in (1, 2, 3)] == [3] * 3


@pytest.mark.needs("resolves-in-place")
def test_both_sessions_are_guarded(store, watched, inner, stored, other, refused):
    """The outer one finds the row that missed, the inner one as well."""
    accounts(store)
    session = watched()
    edit(session)
    other(Account, 2, owner="theirs")
    stale = []

    def write(mapper: Any, connection: Any, target: Any) -> None:
        if not stale:
            mine = inner(connection)
            stale.append(mine)
            mine.get_one(Tally, 1).count += 1
            mine.get_one(Tally, 2).count += 1
            connection.execute(
                Tally.__table__.update()
                .where(Tally.__table__.c.id == 2)
                .values(count=50, version=7)
            )
            with pytest.raises(StaleDataError) as caught:
                mine.flush()
            assert [entry.identity for entry in caught.value.entries] == [(2,)]

    with hearing(Account, "after_update", write):
        conflict = refused(session)
    assert [entry.identity for entry in conflict.entries] == [(2,)]
    session.expunge(session.get_one(Account, 2))
    session.commit()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3)] == ["mine", "theirs", "mine"]
    assert [stored(Tally, n)["count"] for n in (1, 2)] == [1, 50]


def test_what_the_outer_flush_holds_is_sent_first(store, watched, inner, stored):
    """The inner session sees it."""
    accounts(store)
    session = watched()
    edit(session)
    seen: list[list[str]] = []

    def look(mapper: Any, connection: Any, target: Any) -> None:
        mine = inner(connection)
        mine.get_one(Tally, 1).count += 1
        mine.flush()
        seen.append(sorted(mine.scalars(select(Account.owner)).all()))

    with hearing(Account, "after_update", look):
        session.commit()

    assert seen == [["mine"] * 3] * 3


def test_rows_of_the_same_table_in_both(store, watched, inner, stored):
    accounts(store, 5)
    session = watched()
    edit(session, "outer", (1, 3))

    def write(mapper: Any, connection: Any, target: Any) -> None:
        if target.id == 1:
            mine = inner(connection)
            edit(mine, "inner", (2, 4))
            mine.flush()

    with hearing(Account, "after_update", write):
        session.commit()

    assert [stored(Account, n)["owner"] for n in range(1, 5)] == ["outer", "inner"] * 2
    assert [stored(Account, n)["version"] for n in range(1, 5)] == [2] * 4


def test_three_deep(store, watched, inner, stored):
    accounts(store)
    session = watched()
    edit(session)

    def second(mapper: Any, connection: Any, target: Any) -> None:
        mine = inner(connection)
        for tally in mine.scalars(select(Tally).order_by(Tally.id)):
            tally.count += 1
        mine.flush()

    def third(mapper: Any, connection: Any, target: Any) -> None:
        mine = inner(connection)
        note = mine.get_one(Note, 1)
        note.text = (note.text or "") + "+"
        mine.flush()

    with hearing(Account, "after_update", second), hearing(Tally, "after_update", third):
        session.commit()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3)] == ["mine"] * 3
    assert [stored(Tally, n)["count"] for n in (1, 2)] == [3, 3]
    assert stored(Note, 1)["text"] == "a" + "+" * 6


def test_an_inner_session_that_fails_leaves_the_connection_to_the_outer_one(
    store, watched, inner, stored
):
    accounts(store)
    session = watched()
    edit(session)

    def fail(mapper: Any, connection: Any, target: Any) -> None:
        mine = inner(connection, join_transaction_mode="create_savepoint")
        mine.add(Tally(id=1, count=0))
        with pytest.raises(IntegrityError):
            mine.flush()
        mine.rollback()

    with hearing(Account, "after_update", fail):
        session.flush()
    edit(session, "later")
    session.commit()

    assert [stored(Account, n)["owner"] for n in (1, 2, 3)] == ["later"] * 3
    assert [stored(Account, n)["version"] for n in (1, 2, 3)] == [3] * 3


def children(store: Any, watched: Any) -> Session:
    """Two posts are held when the comment is inserted: the posts come first."""
    accounts(store)
    store(Post(id=1, title="a"), Post(id=2, title="a"))
    session = watched()
    for post in session.scalars(select(Post).order_by(Post.id)):
        post.title = "mine"
    session.add(Comment(id=1, post_id=1))
    return session


def test_what_is_held_is_sent_before_an_inner_flush(store, watched, inner, engine):
    """Also where the inner session asks the connection for nothing before it writes."""
    session = children(store, watched)
    mine = inner(session.connection())
    tallies = mine.scalars(select(Tally)).all()

    def write(mapper: Any, connection: Any, target: Any) -> None:
        for tally in tallies:
            tally.count += 1
        mine.flush()

    with hearing(Comment, "before_insert", write), count_statements(engine) as sent:
        session.flush()

    wrote = [one.text for one in sent.statements]
    first = min(n for n, text in enumerate(wrote) if "nested_tallies" in text)
    posts = [n for n, text in enumerate(wrote) if "posts" in text]
    assert posts
    assert max(posts) < first


def test_a_database_error_of_what_the_outer_flush_held_is_its_own_conflict(
    store, watched, inner, other, refused
):
    session = children(store, watched)
    with session.no_autoflush:
        mine = inner(session.connection())
        tallies = mine.scalars(select(Tally)).all()
    other(Post, 2, title="theirs")

    def write(mapper: Any, connection: Any, target: Any) -> None:
        for tally in tallies:
            tally.count += 1
        mine.flush()

    with hearing(Comment, "before_insert", write):
        conflict = refused(session)

    assert [(e.model, e.identity) for e in conflict.entries] == [(Post, (2,))]


# -- a session that nobody watches -----------------------------------------------------------------


def test_an_unwatched_session_of_a_listener_writes_versioned_rows(store, watched, stored):
    accounts(store, 5)
    store(Page(id=1, views=0), Page(id=2, views=0))
    session = watched()
    edit(session, "outer", (1, 3))

    def write(mapper: Any, connection: Any, target: Any) -> None:
        if target.id == 1:
            mine = Session(bind=connection)
            edit(mine, "inner", (2, 4))
            for page in mine.scalars(select(Page)):
                page.views += 1
            mine.flush()
            mine.close()

    with hearing(Account, "after_update", write):
        session.commit()

    assert [stored(Account, n)["owner"] for n in range(1, 5)] == ["outer", "inner"] * 2
    assert stored(Page, 1)["views"] == 1


@pytest.mark.needs("resolves-in-place")
def test_a_stale_row_of_an_unwatched_session_is_sqlalchemys_error(store, watched, other):
    accounts(store, 5)
    session = watched()
    edit(session, "outer", (1, 3))

    def write(mapper: Any, connection: Any, target: Any) -> None:
        if target.id == 1:
            mine = Session(bind=connection)
            mine.get_one(Account, 2).owner = "inner"
            connection.execute(Account.__table__.update().values(version=9))
            mine.flush()

    with hearing(Account, "after_update", write), pytest.raises(StaleDataError, match="0 were"):
        session.flush()


@pytest.mark.needs("resolves-in-place")
def test_an_unwatched_session_does_not_take_the_guard_off(store, watched, stored, other):
    """What is known of its statements is not what a watched session's own flush finds."""
    accounts(store)
    store(Page(id=1, body="a"), Page(id=2, body="a"))
    session = watched()
    edit(session)

    def write(mapper: Any, connection: Any, target: Any) -> None:
        mine = Session(bind=connection)
        for page in mine.scalars(select(Page)):
            page.body = (page.body or "") + "+"
        mine.flush()
        mine.close()

    with hearing(Account, "after_update", write):
        session.commit()
    mine = watched(client_wins)
    pages = mine.scalars(select(Page).order_by(Page.id)).all()
    other(Page, 1, views=5)
    other(Page, 2, body="theirs")
    for page in pages:
        page.body = "mine"
    mine.flush()


@pytest.mark.needs("resolves-in-place")
def test_an_unwatched_session_writes_rows_of_the_same_class(store, watched, stored, gone):
    """Ignored columns only, and beside a delete that somebody else was quicker with."""
    store(*(Page(id=n, body="a") for n in (1, 2, 3, 4)))
    store(Post(id=1), Post(id=2), Post(id=3))
    session = watched(on_delete=OnDelete.IGNORE_GONE, autoflush=False)
    for n in (1, 2):
        session.get_one(Page, n).body = "outer"
        session.get_one(Post, 2).title = "outer"
    session.delete(session.get_one(Post, 1))
    gone(Post, 1)

    def write(mapper: Any, connection: Any, target: Any) -> None:
        if target.id == 1:
            with Session(bind=connection) as mine:
                mine.get_one(Page, 3).views += 1
                mine.get_one(Page, 4).body = "inner"
                mine.get_one(Post, 3).title = "inner"
                mine.flush()

    with hearing(Page, "after_update", write):
        session.commit()

    assert stored(Page, 3)["views"] == 1
    assert stored(Page, 4)["body"] == "inner"
    assert [stored(Post, n)["title"] for n in (2, 3)] == ["outer", "inner"]
