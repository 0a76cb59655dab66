"""Many-to-many link rows that two writers take away, or add: never told as a version conflict."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, ForeignKey, Table, delete, event, func, insert, inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Mapped, Session, relationship
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, Versioned, is_transient, merge_fields
from optilock.errors import LinkGone
from optilock.resolvers import OnDelete
from optilock.testing import count_statements
from tests.support.models import Base, Post, Tag, key, post_tags

alive = pytest.mark.needs("resolves-in-place")


@pytest.fixture
def links(engine):
    def links():
        with Session(engine) as session:
            rows = session.execute(select(post_tags.c.post_id, post_tags.c.tag_id))
            return {tuple(row) for row in rows}

    return links


@pytest.fixture
def unlink(engine):
    """Another program takes a link away."""

    def unlink(post, tag):
        with engine.begin() as connection:
            connection.execute(
                delete(post_tags).where(post_tags.c.post_id == post, post_tags.c.tag_id == tag)
            )

    return unlink


twice = Table(
    "links_without_a_key",
    Base.metadata,
    Column("note_id", ForeignKey("noted.id")),
    Column("tag_id", ForeignKey("tags.id")),
)


class Noted(Versioned, Base):
    """Nothing keeps a link from being stored twice."""

    __tablename__ = "noted"
    id: Mapped[int] = key()
    tags: Mapped[list[Tag]] = relationship(secondary=twice)


@pytest.mark.parametrize("policy", [None, OnDelete.IGNORE_GONE])
def test_a_link_that_is_stored_twice_is_not_told_as_gone(store, watched, engine, policy):
    """SQLAlchemy counts two rows where there should be one, and says so."""
    store(Noted(id=1, tags=[Tag(id=1)]))
    with engine.begin() as connection:
        connection.execute(twice.insert(), [{"note_id": 1, "tag_id": 1}])
    session = watched(on_delete=policy)
    noted = session.get_one(Noted, 1)
    noted.tags.clear()
    if policy is None:
        with pytest.raises(StaleDataError, match="Only 2 were matched") as caught:
            session.flush()
        assert not isinstance(caught.value, LinkGone)
    else:
        session.commit()
        with engine.connect() as connection:
            assert connection.execute(select(twice)).all() == []


def posts(store, count=1):
    tags = [Tag(id=n, name="x") for n in (1, 2, 3)]
    store(*(Post(id=n, title="a", tags=list(tags)) for n in range(1, count + 1)))


@alive
@pytest.mark.parametrize("taken", [1, 2])
def test_a_link_that_is_gone_is_an_error_of_its_own(store, watched, unlink, links, taken):
    """trap 20"""
    posts(store)
    session = watched()
    post = session.get_one(Post, 1)
    del post.tags[:taken]
    unlink(1, 1)
    with pytest.raises(LinkGone) as caught:
        session.flush()

    error = caught.value
    assert isinstance(error, StaleDataError)
    assert isinstance(error, ConcurrencyError)
    assert error.entries == ()
    assert is_transient(error)
    assert (error.table, error.found, len(error.links)) == ("post_tags", taken - 1, taken)
    assert {"post_id": 1, "tag_id": 1} in error.links
    assert f"expected to delete {taken} row(s); Only {taken - 1} were matched" in str(error)


@alive
def test_after_it_the_transaction_is_alive_and_the_rest_of_the_flush_is_written(
    store, watched, unlink, links, stored
):
    posts(store)
    session = watched()
    post = session.get_one(Post, 1)
    del post.tags[:2]
    post.title = "ours"
    unlink(1, 1)
    with pytest.raises(LinkGone):
        session.commit()

    assert session.is_active
    assert (post.title, [tag.id for tag in post.tags]) == ("ours", [3])
    session.commit()
    assert (stored(Post, 1)["title"], links()) == ("ours", {(1, 3)})


@alive
def test_rolling_back_gives_what_is_stored(store, watched, unlink, links):
    posts(store)
    session = watched()
    post = session.get_one(Post, 1)
    del post.tags[:2]
    unlink(1, 1)
    with pytest.raises(LinkGone):
        session.commit()
    session.rollback()

    assert [tag.id for tag in post.tags] == [2, 3]
    assert links() == {(1, 2), (1, 3)}


@alive
@pytest.mark.parametrize(
    "policy",
    [OnDelete.IGNORE_GONE, OnDelete.IGNORE_VERSION, {Post: OnDelete.IGNORE_GONE}],
    ids=["gone", "version", "of the class"],
)
def test_the_policy_for_deletes_lets_it_pass(store, watched, unlink, links, policy):
    posts(store)
    session = watched(on_delete=policy)
    post = session.get_one(Post, 1)
    del post.tags[:2]
    unlink(1, 1)
    session.commit()

    assert links() == {(1, 3)}


@alive
def test_beside_a_conflict_it_is_a_note(store, watched, other, unlink):
    posts(store)
    session = watched(autoflush=False)
    post = session.get_one(Post, 1)
    del post.tags[:1]
    post.title = "ours"
    unlink(1, 1)
    other(Post, 1, title="theirs")
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()

    assert [entry.model for entry in caught.value.entries] == [Post]
    assert any("post_tags" in note for note in caught.value.__notes__)


@alive
def test_a_parent_whose_link_is_gone_is_not_told_as_stale(store, watched, unlink, links):
    posts(store, 2)
    session = watched()
    post = session.get_one(Post, 1)
    assert len(post.tags) == 3
    session.delete(post)
    unlink(1, 2)
    with pytest.raises(LinkGone):
        session.flush()
    session.commit()

    assert links() == {(2, 1), (2, 2), (2, 3)}
    assert inspect(post).detached


@alive
def test_a_link_that_both_add_is_an_integrity_error(store, watched, engine, links):
    """EF-13"""
    posts(store)
    store(Post(id=2, title="b"))
    session = watched(merge_fields)
    post, tag = session.get_one(Post, 2), session.get_one(Tag, 1)
    post.tags.append(tag)
    with engine.begin() as connection:
        connection.execute(insert(post_tags).values(post_id=2, tag_id=1))
    with pytest.raises(IntegrityError) as caught:
        session.commit()
    session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)
    assert (2, 1) in links()
    assert post.tags == [tag]


def test_a_row_that_both_add_is_an_integrity_error(store, watched, stored):
    """EF-15, EC-10, HB-20"""
    store(Post(id=2, title="theirs"))
    session = watched(merge_fields)
    session.add(Post(id=1, title="ours"))
    store(Post(id=1, title="theirs"))
    with pytest.raises(IntegrityError) as caught:
        session.commit()
    session.rollback()

    assert not isinstance(caught.value, ConcurrencyError)
    assert (stored(Post, 1)["title"], stored(Post, 1)["version"]) == ("theirs", 1)


@pytest.mark.needs(
    "server", "resolves-in-place"
)  # SQLite checks foreign keys only where it is told to
def test_a_link_to_a_row_that_is_gone_is_an_integrity_error(store, watched, engine, unlink):
    posts(store)
    store(Tag(id=9, name="x"))
    session = watched()
    post, tag = session.get_one(Post, 1), session.get_one(Tag, 9)
    post.tags.append(tag)
    with engine.begin() as connection:
        connection.execute(delete(Tag).where(Tag.id == 9))
    with pytest.raises(DBAPIError):
        session.commit()


def test_links_that_nobody_touched_are_taken_away_with_one_statement(store, watched, engine, links):
    posts(store)
    session = watched()
    post = session.get_one(Post, 1)
    del post.tags[:2]
    with count_statements(engine) as sent:
        session.flush()
    session.commit()

    assert (sent.count, links()) == (1, {(1, 3)})


@alive
def test_who_deletes_link_rows_himself_in_a_flush_is_not_told_of_gone_ones(
    store, watched, engine, links
):
    posts(store)
    session = watched()

    @event.listens_for(session, "after_flush")
    def also(session, uow):
        session.execute(delete(post_tags).where(post_tags.c.tag_id == 77))

    session.get_one(Post, 1).title = "ours"
    session.commit()
    assert len(links()) == 3


@alive
def test_a_row_without_a_version_that_is_gone_is_sqlalchemys_own_error(store, watched, engine):
    """SA-51"""
    store(Tag(id=1, name="x"))
    session = watched()
    session.get_one(Tag, 1).name = "y"
    with engine.begin() as connection:
        connection.execute(delete(Tag))
    with pytest.raises(StaleDataError) as caught:
        session.flush()

    assert not isinstance(caught.value, (ConcurrencyError, LinkGone))
    session.rollback()
    assert session.scalar(select(func.count()).select_from(Tag)) == 0
