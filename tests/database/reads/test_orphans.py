"""Orphans are deleted in the version in which they were removed from where they belong."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, select
from sqlalchemy.orm import Mapped, mapped_column, relationship

from optilock import Versioned
from tests.support.models import key, own_base

Base = own_base()


class Book(Versioned, Base):
    __tablename__ = "orphans_books"
    id: Mapped[int] = key()
    pages: Mapped[list[Page]] = relationship(back_populates="book", cascade="all, delete-orphan")
    jacket: Mapped[Jacket | None] = relationship(cascade="all, delete-orphan")


class Jacket(Versioned, Base):
    """It does not know its book."""

    __tablename__ = "orphans_jackets"
    id: Mapped[int] = key()
    body: Mapped[str]
    book_id: Mapped[int | None] = mapped_column(ForeignKey("orphans_books.id"))


class Page(Versioned, Base):
    __tablename__ = "orphans_pages"
    id: Mapped[int] = key()
    body: Mapped[str]
    book_id: Mapped[int | None] = mapped_column(ForeignKey("orphans_books.id"))
    book: Mapped[Book | None] = relationship(back_populates="pages")
    notes: Mapped[list[Note]] = relationship(cascade="all, delete-orphan")


class Note(Versioned, Base):
    __tablename__ = "orphans_notes"
    id: Mapped[int] = key()
    body: Mapped[str]
    page_id: Mapped[int | None] = mapped_column(ForeignKey("orphans_pages.id"))


def query_again(session, cls=Page):
    session.scalars(select(cls).execution_options(populate_existing=True)).all()


@pytest.fixture
def library(engine, tables, store, watched_on):
    """A book with a page that has a note, and a jacket: all of them in the session."""
    tables(Book, Page)
    page = Page(id=1, body="old", notes=[Note(id=1, body="old")])
    store(Book(id=1, pages=[page], jacket=Jacket(id=1, body="old")), Book(id=2))
    shared = engine.dialect.name in ("mysql", "mariadb")
    bind = engine.execution_options(isolation_level="READ COMMITTED") if shared else engine
    session = watched_on(bind, autoflush=False)
    book = session.get_one(Book, 1)
    assert book.jacket.body == book.pages[0].notes[0].body == "old"
    return session, book


REMOVALS = {
    "remove": lambda book: book.pages.remove(book.pages[0]),
    "pop": lambda book: book.pages.pop(),
    "replace": lambda book: setattr(book, "pages", []),
    "from the other side": lambda book: setattr(book.pages[0], "book", None),
}


@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("read", [query_again, lambda s: s.refresh(s.get_one(Page, 1))])
def test_an_orphan_is_deleted_in_the_version_in_which_it_was_removed(
    library, other, stored, refused, removal, read
):
    session, book = library
    page = book.pages[0]
    other(Page, 1, body="theirs")
    REMOVALS[removal](book)
    read(session)
    entries = {entry.model: entry for entry in refused(session).entries}
    assert (entries[Page].action, entries[Page].original["version"]) == ("delete", 1)
    session.rollback()
    assert stored(Page, 1)["body"] == "theirs"
    assert (page.version, page.body) == (2, "theirs")
    session.delete(page)
    session.commit()
    assert stored(Page, 1) is None


@pytest.mark.parametrize("by", [None, "another"])
def test_so_is_one_that_was_replaced(library, other, stored, refused, by):
    session, book = library
    old = book.jacket
    other(Jacket, 1, body="theirs")
    book.jacket = by and Jacket(id=2, body=by)
    query_again(session, Jacket)
    assert old.body == "theirs"
    assert refused(session).entries[0].original["version"] == 1
    session.rollback()
    assert stored(Jacket, 1)["body"] == "theirs"


def test_so_is_what_goes_with_an_orphan(library, other, stored, refused):
    session, book = library
    other(Note, 1, body="theirs")
    book.pages.pop()
    query_again(session, Note)
    refused(session)
    session.rollback()
    assert stored(Note, 1)["body"] == "theirs"


def test_so_is_an_orphan_that_was_expired(library, other, stored, refused):
    session, book = library
    page = book.pages[0]
    other(Page, 1, body="theirs")
    book.pages.remove(page)
    session.expire(page)
    query_again(session)
    refused(session)
    session.rollback()
    assert stored(Page, 1)["body"] == "theirs"


def test_who_removes_it_after_the_reading_has_seen_the_later_row(library, other, stored):
    session, book = library
    other(Page, 1, body="theirs")
    query_again(session)
    book.pages.pop()
    query_again(session)
    session.commit()
    assert stored(Page, 1) is None


@pytest.mark.parametrize("to", [1, 2])
def test_one_that_has_got_a_parent_again_is_read_as_any_other(library, other, stored, to):
    session, book = library
    page, parent = book.pages.pop(), session.get_one(Book, to)
    parent.pages.append(page)
    other(Page, 1, body="theirs")
    query_again(session)
    page.body += "+mine"
    session.commit()
    assert stored(Page, 1)["body"] == "theirs+mine"


def test_a_removal_that_was_dropped_counts_for_nothing(library, other, stored):
    session, book = library
    page = book.pages[0]
    book.pages.remove(page)
    session.rollback()
    other(Page, 1, body="theirs")
    page.body += "+mine"
    session.commit()
    assert stored(Page, 1)["body"] == "theirs+mine"
