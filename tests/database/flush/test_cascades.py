"""What a delete takes with it: loaded children are checked, what the database does is not seen."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from optilock import ConcurrencyError, Versioned, client_wins, store_wins
from optilock.resolvers import OnDelete, Resolution
from tests.support.models import Account, Base, Comment, Note, Post, key

ANY = OnDelete.IGNORE_VERSION
alive = pytest.mark.needs("resolves-in-place")
foreign_keys = pytest.mark.needs("server")  # SQLite acts on them only where it is told to


class Shelf(Versioned, Base):
    """The database deletes the books; those that are loaded are deleted by the session."""

    __tablename__ = "shelves"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    books: Mapped[list[Book]] = relationship(
        back_populates="shelf", cascade="all, delete", passive_deletes=True
    )


class Book(Versioned, Base):
    __tablename__ = "books"
    id: Mapped[int] = key()
    title: Mapped[str | None]
    shelf_id: Mapped[int | None] = mapped_column(ForeignKey("shelves.id", ondelete="CASCADE"))
    shelf: Mapped[Shelf | None] = relationship(back_populates="books")


class Box(Versioned, Base):
    """Its things stay when it goes, in no box."""

    __tablename__ = "boxes"
    id: Mapped[int] = key()
    things: Mapped[list[Thing]] = relationship()


class Thing(Versioned, Base):
    __tablename__ = "box_things"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    box_id: Mapped[int | None] = mapped_column(ForeignKey("boxes.id"))


class Country(Versioned, Base):
    """Its key may change, and the database changes the cities."""

    __tablename__ = "countries"
    code: Mapped[str] = key()
    name: Mapped[str | None]
    cities: Mapped[list[City]] = relationship(passive_updates=True)


class City(Versioned, Base):
    __tablename__ = "cities"
    id: Mapped[int] = key()
    country_code: Mapped[str | None] = mapped_column(
        ForeignKey("countries.code", onupdate="CASCADE")
    )


class Branch(Versioned, Base):
    """A tree: each node is checked before its children are deleted."""

    __tablename__ = "branches"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    up_id: Mapped[int | None] = mapped_column(ForeignKey("branches.id"))
    downs: Mapped[list[Branch]] = relationship(
        back_populates="up", cascade="all, delete-orphan", order_by="Branch.id"
    )
    up: Mapped[Branch | None] = relationship(back_populates="downs", remote_side=id)


def count(engine, table):
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(table))


def a_shelf(store):
    store(Shelf(id=1, name="a", books=[Book(id=n, title="a") for n in (1, 2)]))


def a_box(store):
    store(Box(id=1, things=[Thing(id=n, name="a") for n in (1, 2)]))


# -- ON DELETE CASCADE, passive_deletes -----------------------------------------------------------


def test_a_loaded_child_that_was_changed_holds_its_parent(store, watched, other, refused, engine):
    a_shelf(store)
    session = watched()
    shelf = session.get_one(Shelf, 1)
    assert len(shelf.books) == 2
    session.delete(shelf)
    other(Book, 2, title="theirs")
    error = refused(session)
    session.rollback()

    assert [(e.model, e.identity, e.action) for e in error.entries] == [(Book, (2,), "delete")]
    assert (count(engine, Shelf), count(engine, Book)) == (1, 2)


@pytest.mark.needs("server", "resolves-in-place")  # a snapshot sees more
def test_children_that_are_not_loaded_are_deleted_by_the_database_unseen(
    store, watched, other, engine
):
    """Nobody has read them: there is no version that could be compared."""
    a_shelf(store)
    session = watched()
    session.delete(session.get_one(Shelf, 1))
    other(Book, 2, title="theirs")
    session.commit()

    assert (count(engine, Shelf), count(engine, Book)) == (0, 0)


@alive
def test_a_parent_and_its_changed_child_go_where_the_version_is_ignored(
    store, watched, other, engine
):
    a_shelf(store)
    session = watched(on_delete={Book: ANY})
    shelf = session.get_one(Shelf, 1)
    assert len(shelf.books) == 2
    session.delete(shelf)
    other(Book, 2, title="theirs")
    session.commit()

    assert (count(engine, Shelf), count(engine, Book)) == (0, 0)


# -- children that stay ---------------------------------------------------------------------------


def test_a_child_that_loses_its_parent_is_checked(store, watched, other, refused, engine, stored):
    a_box(store)
    session = watched()
    box = session.get_one(Box, 1)
    assert len(box.things) == 2
    session.delete(box)
    other(Thing, 2, name="theirs")
    error = refused(session)
    session.rollback()

    assert [(e.model, e.identity, e.action) for e in error.entries] == [(Thing, (2,), "update")]
    assert (count(engine, Box), stored(Thing, 1)["box_id"], stored(Thing, 2)["box_id"]) == (1, 1, 1)


@alive
def test_a_child_that_loses_its_parent_keeps_what_the_other_wrote(store, watched, other, stored):
    a_box(store)
    session = watched(client_wins)
    box = session.get_one(Box, 1)
    assert len(box.things) == 2
    session.delete(box)
    other(Thing, 2, name="theirs")
    session.commit()

    assert (stored(Thing, 2)["box_id"], stored(Thing, 2)["name"]) == (None, "theirs")
    assert stored(Box, 1) is None


@alive
@pytest.mark.parametrize("rule", [{"on_conflict": client_wins}, {"on_delete": {Comment: ANY}}])
def test_a_changed_child_goes_before_its_parent_does(store, watched, other, engine, rule):
    """A foreign key would keep the parent, if the child waited for the end of the flush."""
    store(Post(id=1, title="a", comments=[Comment(id=n, text="a") for n in (1, 2)]))
    session = watched(**rule)
    session.delete(session.get_one(Post, 1))
    other(Comment, 2, text="theirs")
    session.commit()

    assert (count(engine, Post), count(engine, Comment)) == (0, 0)


@alive
def test_a_child_that_was_settled_comes_back_when_another_row_is_refused(
    store, watched, other, engine, stored
):
    store(Post(id=1, title="a", comments=[Comment(id=1, text="a")]), Account(id=1))
    session = watched(on_delete={Comment: ANY}, autoflush=False)
    session.get_one(Account, 1).balance = 1
    session.delete(session.get_one(Post, 1))
    other(Comment, 1, text="theirs")
    other(Account, 1, owner="theirs")
    with pytest.raises(ConcurrencyError):
        session.commit()
    session.rollback()

    assert (count(engine, Post), stored(Comment, 1)["text"]) == (1, "theirs")
    assert stored(Account, 1)["owner"] == "theirs"


# -- orphans --------------------------------------------------------------------------------------


def two_posts(store):
    store(Post(id=1, title="a", comments=[Comment(id=1, text="a")]), Post(id=2, title="b"))


def test_a_child_with_another_parent_is_no_orphan_and_is_checked(
    store, watched, other, refused, stored
):
    two_posts(store)
    session = watched()
    one, two = session.get_one(Post, 1), session.get_one(Post, 2)
    assert two.comments == []
    comment = one.comments[0]
    two.comments.append(comment)
    other(Comment, 1, text="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.action, entry.changes) == ("update", {"post_id": 2})
    assert stored(Comment, 1)["post_id"] == 1


@alive
@pytest.mark.parametrize("resolver", [client_wins, store_wins])
def test_an_orphan_that_was_changed_goes_or_stays_as_the_resolver_says(
    store, watched, other, stored, resolver
):
    two_posts(store)
    session = watched(resolver)
    post = session.get_one(Post, 1)
    comment = post.comments.pop()
    other(Comment, 1, text="theirs")
    session.commit()

    row = stored(Comment, 1)
    assert (row is None) is (resolver is client_wins)
    if row is not None:
        assert (row["text"], row["post_id"], comment.text) == ("theirs", 1, "theirs")
        session.refresh(post)
        assert post.comments == [comment]


@alive
def test_an_orphan_that_stays_is_none_for_later_flushes(store, watched, other, stored):
    two_posts(store)
    session = watched(store_wins)
    post = session.get_one(Post, 1)
    comment = post.comments.pop()
    other(Comment, 1, text="theirs")
    session.flush()
    assert post.comments == [comment]
    comment.text = "mine"
    session.commit()

    row = stored(Comment, 1)
    assert (row["text"], row["post_id"]) == ("mine", 1)


# -- keys -----------------------------------------------------------------------------------------


@foreign_keys
def test_a_key_that_changes_takes_the_children_along(store, watched, stored):
    store(Country(code="a", name="A", cities=[City(id=1)]))
    session = watched()
    country = session.get_one(Country, "a")
    assert len(country.cities) == 1
    country.code = "b"
    session.commit()

    assert stored(City, 1)["country_code"] == "b"
    assert stored(Country, "b")["version"] == country.version == 2


def test_a_stale_row_whose_key_changes_is_refused_under_its_old_key(
    store, watched, other, refused, stored
):
    store(Country(code="a", name="A"))
    session = watched()
    session.get_one(Country, "a").code = "b"
    other(Country, "a", name="theirs")
    [entry] = refused(session).entries
    session.rollback()

    assert (entry.identity, entry.changes) == (("a",), {"code": "b"})
    assert (stored(Country, "a")["name"], stored(Country, "b")) == ("theirs", None)


@pytest.mark.parametrize("stale", [True, False])
def test_a_delete_of_a_row_whose_key_was_changed_uses_the_old_key(
    store, watched, other, refused, stored, stale
):
    """RL-13"""
    store(Country(code="a", name="A"), Country(code="b", name="B"))
    session = watched(autoflush=False)
    country = session.get_one(Country, "a")
    country.code = "z"
    session.delete(country)
    if stale:
        other(Country, "a", name="theirs")
        assert [entry.identity for entry in refused(session).entries] == [("a",)]
        session.rollback()
    else:
        session.commit()

    assert (stored(Country, "a") is not None, stored(Country, "b") is not None) == (stale, True)


# -- delete, and create again ---------------------------------------------------------------------


@pytest.mark.parametrize("model", [Account, Note])
def test_a_row_that_is_deleted_and_created_in_two_flushes_begins_anew(
    store, watched, stored, model
):
    store(model(id=1))
    session = watched()
    session.delete(session.get_one(model, 1))
    session.flush()
    new = model(id=1)
    session.add(new)
    session.commit()
    new_version = new.version
    setattr(new, "owner" if model is Account else "text", "again")
    session.commit()

    assert stored(model, 1)["version"] == new.version != new_version


def test_a_delete_after_several_flushes_expects_the_last_version(store, watched, stored):
    """HB-03."""
    store(Account(id=1))
    session = watched()
    row = session.get_one(Account, 1)
    for number in range(3):
        row.balance = number + 10
        session.flush()
    session.delete(row)
    session.commit()

    assert stored(Account, 1) is None


@pytest.mark.parametrize("loaded", [False, True], ids=["children-unknown", "children-loaded"])
def test_an_expired_parent_is_deleted_in_the_version_that_was_seen(
    store, watched, other, stored, loaded
):
    """Looking for its children, session.delete() reads the parent: nobody has seen that."""
    store(Post(id=1, title="a", comments=[Comment(id=1, text="b")]))
    session = watched()
    post = session.get_one(Post, 1)
    if loaded:
        assert len(post.comments) == 1
    session.commit()
    other(Post, 1, title="theirs")
    session.delete(post)
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    assert [entry.model for entry in caught.value.entries] == [Post]
    session.rollback()
    assert stored(Post, 1)["title"] == "theirs"


def test_an_expired_parent_that_nobody_moved_is_deleted(store, watched, stored):
    store(Post(id=1, title="a", comments=[Comment(id=1, text="b")]))
    session = watched()
    post = session.get_one(Post, 1)
    session.commit()
    session.delete(post)
    session.commit()
    assert stored(Post, 1) is None
    assert stored(Comment, 1) is None


# -- trees ----------------------------------------------------------------------------------------


def a_tree(store):
    store(Branch(id=1, downs=[Branch(id=2, downs=[Branch(id=4)]), Branch(id=3)]))


def doomed_tree(session):
    [branch.downs for branch in session.scalars(select(Branch)).all()]
    session.delete(session.get_one(Branch, 1))


@alive
@pytest.mark.parametrize("changed", [2, 3, 4])
@pytest.mark.parametrize(
    "resolver",
    [store_wins, lambda entry: Resolution.write({"name": "ours"})],
    ids=["keep", "write"],
)
def test_a_node_is_not_kept_where_its_parent_is_deleted(
    store, watched, other, stored, refused, changed, resolver
):
    """It would be an error of the foreign key, or be taken along unseen: the conflict is told."""
    a_tree(store)
    session = watched(resolver)
    doomed_tree(session)
    other(Branch, changed, name="theirs")
    error = refused(session)
    assert [e.identity for e in error.entries] == [(changed,)]
    assert "its parent is deleted in the same flush" in error.__notes__[0]
    assert session.is_active
    session.rollback()

    assert [stored(Branch, n) is not None for n in (1, 2, 3, 4)] == [True] * 4
    assert stored(Branch, changed)["name"] == "theirs"


@alive
def test_a_node_may_be_kept_under_another_parent_or_with_the_whole_tree(
    store, watched, other, stored
):
    a_tree(store)
    session = watched({Branch: lambda entry: Resolution.write({"up_id": None})})
    doomed_tree(session)
    other(Branch, 4, name="theirs")
    session.commit()
    assert [stored(Branch, n) is not None for n in (1, 2, 3, 4)] == [False, False, False, True]

    session = watched(store_wins)
    session.delete(session.get_one(Branch, 4))
    other(Branch, 4, name="again")
    session.commit()
    assert (stored(Branch, 4)["name"], stored(Branch, 4)["up_id"]) == ("again", None)


@alive
def test_a_tree_whose_root_is_kept_is_kept_as_a_whole(store, watched, other, stored):
    a_tree(store)
    session = watched(store_wins)
    doomed_tree(session)
    other(Branch, 1, name="theirs")
    other(Branch, 4, name="theirs")
    session.commit()

    assert [stored(Branch, n) is not None for n in (1, 2, 3, 4)] == [True] * 4
