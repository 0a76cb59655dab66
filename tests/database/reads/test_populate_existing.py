"""``populate_existing``: the object is the row that was read, or keeps the version it had."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    Mapped,
    defer,
    joinedload,
    load_only,
    mapped_column,
    relationship,
    selectin_polymorphic,
    selectinload,
    subqueryload,
    undefer,
    with_polymorphic,
)

from optilock import Versioned, client_wins, store_wins
from optilock.testing import count_statements
from tests.support.models import key, own_base

Base = own_base()


class Book(Versioned, Base):
    __tablename__ = "populated_books"
    id: Mapped[int] = key()
    title: Mapped[str]
    body: Mapped[str]
    pages: Mapped[list[Page]] = relationship(
        back_populates="book", cascade="all, delete-orphan", order_by="Page.id"
    )


class Page(Versioned, Base):
    __tablename__ = "populated_pages"
    id: Mapped[int] = key()
    title: Mapped[str]
    body: Mapped[str]
    book_id: Mapped[int | None] = mapped_column(ForeignKey("populated_books.id"))
    book: Mapped[Book | None] = relationship(back_populates="pages")


class Animal(Versioned, Base):
    __tablename__ = "populated_animals"
    id: Mapped[int] = key()
    kind: Mapped[str]
    name: Mapped[str]
    note: Mapped[str] = mapped_column(default="old")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "populated_dogs"
    id: Mapped[int] = mapped_column(ForeignKey("populated_animals.id"), primary_key=True)
    tricks: Mapped[str]
    __mapper_args__ = {"polymorphic_identity": "dog"}


@pytest.fixture
def moved(engine, store, watched_on, other):
    """Our session holds every row; then somebody else has changed it, and we can see that.

    On MariaDB that takes READ COMMITTED.
    """

    def moved(**options):
        store(
            Book(id=1, title="old", body="old", pages=[Page(id=1, title="old", body="old")]),
            Dog(id=1, name="old", tricks="old"),
        )
        shared = engine.dialect.name in ("mysql", "mariadb")
        bind = engine.execution_options(isolation_level="READ COMMITTED") if shared else engine
        session = watched_on(bind, **options)
        book, page = session.get_one(Book, 1), session.get_one(Page, 1)
        dog = session.get_one(Dog, 1)
        other(Book, 1, title="theirs", body="theirs")
        other(Page, 1, title="theirs", body="theirs")
        other(Dog, 1, name="theirs", note="theirs", tricks="theirs")
        return session, book, page, dog

    return moved


def again(session, query):
    return session.scalars(query.execution_options(populate_existing=True)).unique().all()


LEAVE_OUT = {
    "load_only": load_only(Page.title),
    "defer": defer(Page.body),
    "defer all": defer("*"),
    "raise": defer(Page.body, raiseload=True),
}


@pytest.mark.parametrize("option", ["load_only", "defer", "defer all"])
@pytest.mark.parametrize("edited", ["body", "title"])
def test_what_the_query_leaves_out_is_read_later(moved, stored, option, edited):
    session, _, page, _ = moved()
    again(session, select(Page).options(LEAVE_OUT[option]))
    setattr(page, edited, getattr(page, edited) + "+mine")
    session.commit()
    assert stored(Page, 1)[edited] == "theirs+mine"
    assert stored(Page, 1)["body" if edited == "title" else "title"] == "theirs"


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.query(Page).options(load_only(Page.title)).populate_existing().all(),
        lambda s: s.get(Page, 1, options=[load_only(Page.title)], populate_existing=True),
        lambda s: s.scalars(
            select(Page).options(load_only(Page.title)),
            execution_options={"populate_existing": True},
        ).all(),
    ],
    ids=["query", "get", "option of execute"],
)
def test_whatever_way_it_is_asked(moved, stored, read):
    session, _, page, _ = moved()
    read(session)
    page.body += "+mine"
    session.commit()
    assert stored(Page, 1)["body"] == "theirs+mine"


def test_a_row_that_the_session_has_stored_is_read_in_part_and_whole(moved, stored):
    """No query has loaded the object: SQLAlchemy knows no path to it."""
    session, book, _, _ = moved()
    page = Page(id=7, book=book, title="mine", body="mine")
    session.add(page)
    session.flush()
    session.expire(page, ["book_id"])
    session.scalars(select(Page).options(load_only(Page.title))).all()
    again(session, select(Page))
    page.title += "+again"
    session.commit()
    assert stored(Page, 7)["title"] == "mine+again"
    assert stored(Page, 7)["body"] == "mine"


def test_a_refresh_of_some_attributes_leaves_the_version(moved, refused):
    session, _, page, _ = moved()
    session.refresh(page, ["title"])
    page.body += "+mine"
    assert refused(session).entries[0].original["version"] == 1


def test_an_edit_of_what_is_left_out_is_dropped_with_the_others(moved):
    session, _, page, _ = moved()
    page.body = "mine"
    with session.no_autoflush:
        again(session, select(Page).options(load_only(Page.title)))
        assert page not in session.dirty
        assert page.body == "theirs"


@pytest.mark.parametrize("load", [joinedload, selectinload, subqueryload])
def test_related_objects_that_come_with_it_are_no_exception(moved, stored, load):
    session, _, page, _ = moved()
    again(session, select(Book).options(load(Book.pages).load_only(Page.title)))
    page.body += "+mine"
    session.commit()
    assert stored(Page, 1)["body"] == "theirs+mine"


WITH_DOGS = selectin_polymorphic(Animal, [Dog])
OF_A_HIERARCHY = {
    "base": select(Animal),
    "base, some": select(Animal).options(load_only(Animal.name)),
    "child, some of the base": select(Dog).options(load_only(Dog.name)),
    "child, some": select(Dog).options(load_only(Dog.tricks)),
    "two queries": select(Animal).options(WITH_DOGS),
    "two queries, some of the base": select(Animal).options(WITH_DOGS, load_only(Animal.name)),
    "two queries, not the child's": select(Animal).options(WITH_DOGS, defer(Dog.tricks)),
    "all tables": select(with_polymorphic(Animal, "*")),
}


@pytest.mark.parametrize("query", OF_A_HIERARCHY)
def test_columns_of_a_hierarchy_belong_to_the_row_that_was_read(moved, query):
    session, _, _, dog = moved()
    again(session, OF_A_HIERARCHY[query])
    assert (dog.name, dog.note, dog.tricks) == ("theirs", "theirs", "theirs")
    assert dog.version == 2


def test_what_is_read_in_full_is_not_read_twice(moved, engine):
    """Also of an object from which an earlier query has left something out."""
    session, _, page, _ = moved()
    again(session, select(Page).options(load_only(Page.title)))
    assert page.body == "theirs"
    for query in (select(Page), select(Page).options(joinedload(Page.book), undefer(Page.body))):
        again(session, query)
        with count_statements(engine) as sent:
            assert page.body == "theirs"
        assert sent.count == 0


def test_what_is_left_out_and_must_not_be_read_is_not(moved):
    session, _, page, _ = moved()
    again(session, select(Page).options(LEAVE_OUT["raise"]))
    with pytest.raises(InvalidRequestError, match="raiseload"):
        _ = page.body


# -- marked deleted -------------------------------------------------------------------------------


def query_again(session, cls=Page):
    with session.no_autoflush:
        again(session, select(cls))


def test_a_delete_that_was_decided_on_the_older_row_conflicts(moved, stored, refused):
    session, _, page, _ = moved()
    session.delete(page)
    query_again(session)
    entry = refused(session).entries[0]
    assert (entry.action, entry.original["version"]) == ("delete", 1)
    assert entry.database["body"] == "theirs"
    session.rollback()
    assert stored(Page, 1)["body"] == "theirs"


@pytest.mark.parametrize(
    "read",
    [
        lambda s, page: s.get(Page, 1, populate_existing=True),
        lambda s, page: s.query(Page).populate_existing().all(),
        lambda s, page: s.refresh(page),
        lambda s, page: (s.expire(page), query_again(s)),
        lambda s, page: (query_again(s), query_again(s)),
        lambda s, page: (
            s.scalars(
                select(Book).options(joinedload(Book.pages)),
                execution_options={"populate_existing": True},
            )
            .unique()
            .all()
        ),
    ],
    ids=["get", "query", "refresh", "expired", "twice", "eager"],
)
def test_so_it_does_whatever_way_the_row_is_read_again(moved, stored, refused, read):
    session, _, page, _ = moved()
    session.delete(page)
    with session.no_autoflush:
        read(session, page)
    refused(session)
    session.rollback()
    assert stored(Page, 1)["body"] == "theirs"


def test_so_does_one_that_a_cascade_has_marked(moved, stored, refused):
    session, book, page, _ = moved()
    assert book.pages == [page]
    session.delete(book)
    query_again(session)
    query_again(session, Book)
    assert {entry.model for entry in refused(session).entries} == {Book, Page}
    session.rollback()
    assert stored(Page, 1)["body"] == "theirs"


def test_who_takes_the_delete_back_and_decides_again_has_seen_the_later_row(moved, stored):
    session, _, page, _ = moved()
    session.delete(page)
    query_again(session)
    session.add(page)
    query_again(session)
    assert (page.version, page.body) == (2, "theirs")
    session.delete(page)
    session.commit()
    assert stored(Page, 1) is None


@pytest.mark.parametrize(("resolver", "kept"), [(client_wins, False), (store_wins, True)])
def test_a_resolver_is_asked(moved, stored, resolver, kept):
    session, _, page, _ = moved(on_conflict=resolver)
    session.delete(page)
    query_again(session)
    session.commit()
    assert (stored(Page, 1) is not None) is kept


def test_a_delete_of_a_row_that_nobody_has_moved_goes_through(moved, stored):
    session, _, page, _ = moved()
    session.refresh(page)
    session.delete(page)
    query_again(session)
    session.commit()
    assert stored(Page, 1) is None
