"""A flush that the guard does itself means for the session what one of SQLAlchemy's means."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import CheckConstraint, ForeignKey, event, func, insert, select
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InvalidRequestError,
    PendingRollbackError,
    SAWarning,
)
from sqlalchemy.orm import (
    Mapped,
    Session,
    UOWTransaction,
    mapped_column,
    relationship,
    sessionmaker,
)

from optilock import Versioned, touch, watch
from optilock._watched.guard import flush as guarded_flushes
from tests.support.models import key, own_base

Base = own_base()


class Shelf(Versioned, Base):
    __tablename__ = "of_shelves"
    id: Mapped[int] = key()
    books: Mapped[list[Book]] = relationship(cascade="all, delete-orphan")


class Book(Versioned, Base):
    __tablename__ = "of_books"
    id: Mapped[int] = key()
    shelf_id: Mapped[int | None] = mapped_column(ForeignKey("of_shelves.id"))
    copies: Mapped[int] = mapped_column(CheckConstraint("copies >= 0"))


class Cart(Versioned, Base):
    """The root of an aggregate: its version moves with its lines."""

    __tablename__ = "of_carts"
    __version_root_of__ = ("lines",)
    id: Mapped[int] = key()
    lines: Mapped[list[Line]] = relationship()


class Line(Versioned, Base):
    __tablename__ = "of_lines"
    id: Mapped[int] = key()
    cart_id: Mapped[int] = mapped_column(ForeignKey("of_carts.id"))
    pieces: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def sessions(engine):
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine))
    with made() as session, session.begin():
        session.execute(insert(Shelf.__table__).values(id=1, version=1))
        for number in (1, 2):
            row = {"id": number, "shelf_id": 1, "copies": 10, "version": 1}
            session.execute(insert(Book.__table__).values(row))
    with made() as session:  # SQLAlchemy makes its statement
        session.get_one(Book, 1).copies = 11
        session.commit()
    yield made
    Base.metadata.drop_all(engine)


@pytest.fixture
def begun(monkeypatch) -> list[Any]:
    """The flushes that SQLAlchemy has begun, and the guard has not done itself."""
    flushes: list[Any] = []
    begin = Session._flush

    def counted(self: Session, *args: Any) -> None:
        flushes.append(self)
        begin(self, *args)

    monkeypatch.setattr(Session, "_flush", counted)
    return flushes


@pytest.fixture(params=["ours", "SQLAlchemy's"])
def whose(request, monkeypatch, begun):
    if request.param != "ours":
        monkeypatch.setattr(guarded_flushes, "_flush_changed_columns", lambda *_: False)
    yield request.param
    assert bool(begun) is (request.param != "ours")


def stored(sessions, number: int) -> int | None:
    with sessions() as session:
        return session.scalar(select(Book.copies).where(Book.id == number))


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_ends_the_transaction_until_it_is_rolled_back(sessions, whose):
    with sessions() as session:
        first, second = session.get_one(Book, 1), session.get_one(Book, 2)
        first.copies = 5
        session.flush()
        second.copies = -1
        with pytest.raises((IntegrityError, DBAPIError)) as failed:
            session.flush()
        assert not session.is_active
        with pytest.raises(
            PendingRollbackError, match="rolled back due to a previous exc"
        ) as later:
            session.get(Book, 1)
        assert str(failed.value.orig) in str(later.value)
        session.rollback()
        assert (first.copies, second.copies) == (11, 10)
        first.copies = 7
        session.commit()
    assert stored(sessions, 1) == 7


def test_an_error_in_a_savepoint_ends_the_savepoint(sessions, whose):
    with sessions() as session:
        first, second = session.get_one(Book, 1), session.get_one(Book, 2)
        first.copies = 5
        session.flush()
        with pytest.raises(DBAPIError), session.begin_nested():
            second.copies = -1
            session.flush()
        assert session.is_active
        assert (first.copies, second.copies) == (5, 10)
        session.commit()
    assert stored(sessions, 1) == 5


def test_going_back_to_a_savepoint_takes_back_what_was_flushed_in_it(sessions, whose):
    with sessions() as session:
        book = session.get_one(Book, 1)
        savepoint = session.begin_nested()
        book.copies = 5
        session.flush()
        savepoint.rollback()
        assert (book.copies, book.version) == (11, 2)
        book.copies = 6
        session.commit()
    assert stored(sessions, 1) == 6


def test_a_step_before_the_flush_that_fails_leaves_the_transaction_alone(
    sessions, whose, monkeypatch
):
    def intercept(flush, connection) -> None:
        raise LookupError

    with sessions() as session:
        session.get_one(Book, 1).copies = 5
        with monkeypatch.context() as patched:
            patched.setattr(guarded_flushes, "intercept", intercept)
            with pytest.raises(LookupError):
                session.flush()
        assert session.is_active
        session.commit()
    assert stored(sessions, 1) == 5


# -- inside of a flush -----------------------------------------------------------------------------


def at_the_update(session: Session, do: Any) -> None:
    @event.listens_for(session.connection(), "before_cursor_execute")
    def before_cursor_execute(connection, cursor, statement, *_) -> None:
        if statement.startswith("UPDATE"):
            do()


@pytest.mark.usefixtures("whose")
def test_what_is_added_inside_of_it_is_warned_of(sessions):
    with sessions() as session:
        book = session.get_one(Book, 1)
        at_the_update(session, lambda: session.add(Book(id=3, copies=1)))
        book.copies = 5
        with pytest.warns(SAWarning, match="not currently supported within the execution stage"):
            session.flush()
        session.rollback()


def test_one_inside_of_another_is_refused(sessions, whose):
    with sessions() as session:
        book = session.get_one(Book, 1)
        at_the_update(session, lambda: Session.flush(session))
        book.copies = 5
        with pytest.raises(InvalidRequestError, match="already flushing"):
            session.flush()
        session.rollback()


# -- whose flush it is -----------------------------------------------------------------------------


def test_one_without_changes_does_nothing(sessions, begun):
    with sessions() as session:
        session.get_one(Book, 1)
        session.flush()
    assert not begun


@pytest.mark.parametrize("name", ["before_flush", "after_flush", "after_flush_postexec"])
@pytest.mark.parametrize("where", ["session", "factory", "class"])
def test_listeners_to_flushes_are_called(sessions, begun, name, where):
    heard = []

    def listener(session, context, *_) -> None:
        heard.append((session, type(context), list(context.states) or list(session.dirty)))

    with sessions() as session:
        book = session.get_one(Book, 1)
        target = {"session": session, "factory": sessions, "class": Session}[where]
        event.listen(target, name, listener)
        try:
            book.copies = 5
            session.flush()
        finally:
            event.remove(target, name, listener)
        assert [(one, kind) for one, kind, _ in heard] == [(session, UOWTransaction)]
        assert heard[0][2]
        assert begun == [session]
        book.copies = 6
        session.flush()
        assert begun == [session]


def test_rows_that_are_touched_are_left_to_sqlalchemy(sessions, begun):
    with sessions() as session:
        book = session.get_one(Book, 1)
        touch(session.get_one(Book, 2))
        book.copies = 5
        session.commit()
    assert begun
    with sessions() as session:
        assert [session.get_one(Book, n).version for n in (1, 2)] == [3, 2]


def test_a_class_of_an_aggregate_leaves_the_flushes_of_others_alone(sessions, begun):
    with sessions() as session, session.begin():
        session.execute(insert(Cart.__table__).values(id=1, version=1))
        session.execute(insert(Line.__table__).values(id=1, cart_id=1, pieces=0, version=1))
    with sessions() as session:
        session.get_one(Book, 1).copies = 5
        session.commit()
        assert not begun
        session.get_one(Line, 1).pieces = 5
        session.commit()
        assert begun
        assert session.get_one(Cart, 1).version == 2


def test_an_orphan_is_deleted(sessions, begun):
    """Its parent has let it go, and has left the session since."""
    with sessions() as session:
        shelf = session.get_one(Shelf, 1)
        book = shelf.books[0]
        shelf.books.remove(book)
        session.expunge(shelf)
        book.copies = 5
        session.commit()
    assert begun
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Book)) == 1
