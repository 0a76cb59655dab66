"""Rows with a version on every engine: ignored columns, missing versions, rows made again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, String, delete, insert, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    sessionmaker,
)
from sqlalchemy.orm.exc import StaleDataError

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Unique,
    Versioned,
    client_wins,
    etag_of,
    watch,
)


class Base(DeclarativeBase):
    type_annotation_map = {str: String(50)}


class Page(Versioned, Base):
    __tablename__ = "vr_pages"
    __version_ignore__ = ("views",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str]
    views: Mapped[int] = mapped_column(default=0)


class Animal(Versioned, Base):
    __tablename__ = "vr_animals"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}


class Dog(Animal):
    __tablename__ = "vr_dogs"
    __version_ignore__ = ("walks",)
    id: Mapped[int] = mapped_column(ForeignKey("vr_animals.id"), primary_key=True)
    walks: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Ticket(Versioned, Base):
    __tablename__ = "vr_tickets"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]


class Seat(Versioned, Base):
    __tablename__ = "vr_seats"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]


@pytest.fixture
def sessions(engine: Engine) -> Iterator[sessionmaker[Session]]:
    Base.metadata.create_all(engine)
    made = watch(sessionmaker(engine, expire_on_commit=False))
    with made.begin() as session:
        session.add_all(Page(id=n, title="old") for n in range(1, 5))
        session.add_all(Dog(id=n, name="Rex") for n in range(1, 4))
        session.add_all([Ticket(id=1, text="old"), Seat(id=1, text="old")])
    yield made
    Base.metadata.drop_all(engine)


def somebody_else(sessions: sessionmaker[Session], model: Any, key: int, **values: Any) -> None:
    with sessions.begin() as session:
        for name, value in values.items():
            setattr(session.get_one(model, key), name, value)


def stored(sessions: sessionmaker[Session], model: Any, key: int = 1) -> Any:
    with sessions() as session:
        return session.get(model, key)


# -- ignored columns -------------------------------------------------------------------------------


@pytest.mark.parametrize("by_expression", [False, True])
def test_an_ignored_column_neither_moves_the_version_nor_conflicts(sessions, by_expression) -> None:
    with sessions() as session:
        page = session.get_one(Page, 1)
        session.commit()
        somebody_else(sessions, Page, 1, title="theirs")
        page.views = Page.views + 1 if by_expression else 1
        session.commit()
    after = stored(sessions, Page)
    assert (after.title, after.views, after.version) == ("theirs", 1, 2)


def test_ignored_edits_go_along_with_guarded_ones_of_other_rows(sessions) -> None:
    with sessions() as session:
        pages = session.scalars(select(Page).order_by(Page.id)).all()
        session.commit()
        somebody_else(sessions, Page, 1, title="theirs")
        pages[0].views = 7
        for page in pages[1:]:
            page.title = "new"
        session.commit()
        assert [page.version for page in pages] == [1, 2, 2, 2]
    assert [stored(sessions, Page, n).views for n in (1, 2)] == [7, 0]


def test_an_ignored_column_beside_a_guarded_one_is_checked_and_named_in_no_conflict(
    sessions, database
) -> None:
    with sessions() as session:
        page = session.get_one(Page, 1)
        session.commit()
        somebody_else(sessions, Page, 1, title="theirs", views=5)
        page.title, page.views = "mine", 1
        with pytest.raises(ConcurrencyError) as caught:
            session.flush()
    [entry] = caught.value.entries
    assert entry.conflicting == {"title"}


def test_an_ignored_column_of_a_joined_table_leaves_the_base_alone(sessions) -> None:
    with sessions() as session:
        dogs = session.scalars(select(Dog).order_by(Dog.id)).all()
        session.commit()
        somebody_else(sessions, Animal, 1, name="theirs")
        dogs[0].walks = 3
        dogs[1].name = "Max"
        session.commit()
    first, second = stored(sessions, Dog, 1), stored(sessions, Dog, 2)
    assert (first.name, first.walks, first.version) == ("theirs", 3, 2)
    assert (second.name, second.version) == ("Max", 2)


def test_a_row_that_is_gone_conflicts_even_for_an_ignored_column(sessions) -> None:
    with sessions() as session:
        page = session.get_one(Page, 1)
        session.commit()
        with sessions.begin() as other:
            other.delete(other.get_one(Page, 1))
        page.views = 1
        with pytest.raises(ConcurrencyError) as caught:
            session.commit()
    assert caught.value.entries[0].kind == "deleted"


# -- rows without a version ------------------------------------------------------------------------


@pytest.fixture
def unversioned(sessions, engine: Engine) -> None:
    """A table whose column came later, and without NOT NULL."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE vr_seats"))
        connection.execute(
            text("CREATE TABLE vr_seats (id INTEGER PRIMARY KEY, text VARCHAR(50), version BIGINT)")
        )
        connection.execute(text("INSERT INTO vr_seats (id, text) VALUES (1, 'old'), (2, 'old')"))


@pytest.mark.usefixtures("unversioned")
@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_null_version_is_an_error_that_says_how_to_repair_the_table(
    sessions, deleting, rows
) -> None:
    with sessions() as session:
        seats = session.scalars(select(Seat).order_by(Seat.id).limit(rows)).all()
        for seat in seats:
            if deleting:
                session.delete(seat)
            else:
                seat.text = "mine"
        with pytest.raises(
            ConfigurationError, match=r"Seat \(1,\) has no version.*UPDATE vr_seats"
        ):
            session.flush()
        assert session.is_active
        assert set(session.deleted if deleting else session.dirty) == set(seats)
        session.rollback()
    assert stored(sessions, Seat).text == "old"


# -- rows made again -------------------------------------------------------------------------------


def make_again(sessions: sessionmaker[Session], model: Any) -> None:
    with sessions.begin() as session:
        session.execute(delete(model).where(model.id == 1))
        session.execute(insert(model), [{"id": 1, "text": "another"}])


def test_with_unique_a_row_made_again_never_passes_for_its_predecessor(sessions) -> None:
    with sessions() as session:
        ticket = session.get_one(Ticket, 1)
        session.commit()
        make_again(sessions, Ticket)
        ticket.text = "mine"
        with pytest.raises(ConcurrencyError):
            session.commit()
    assert stored(sessions, Ticket).text == "another"


def test_with_counter_it_can_which_the_manual_says(sessions) -> None:
    with sessions() as session:
        seat = session.get_one(Seat, 1)
        session.commit()
        make_again(sessions, Seat)
        seat.text = "mine"
        session.commit()
    assert stored(sessions, Seat).text == "mine"


def test_the_etag_follows_the_version(sessions) -> None:
    with sessions() as session:
        seat = session.get_one(Seat, 1)
        assert etag_of(seat) == '"1"'
        seat.text = "new"
        session.commit()
        assert etag_of(seat) == '"2"'


# -- a plain session -------------------------------------------------------------------------------


def test_a_plain_session_still_notices_a_lost_update(sessions, engine) -> None:
    plain = sessionmaker(engine, expire_on_commit=False)
    with plain() as session:
        seat = session.get_one(Seat, 1)
        session.commit()
        somebody_else(sessions, Seat, 1, text="theirs")
        seat.text = "mine"
        with pytest.raises(StaleDataError) as caught:
            session.commit()
    assert not isinstance(caught.value, ConcurrencyError)


def test_a_statement_of_the_user_inside_the_transaction_is_seen(sessions) -> None:
    watched = watch(sessions, on_conflict=client_wins)
    with watched.begin() as session:
        seat = session.get_one(Seat, 1)
        session.execute(
            update(Seat).where(Seat.id == 1).values(text="own", version=Seat.version + 1),
            execution_options={"synchronize_session": False},
        )
        seat.text = "mine"
    assert stored(sessions, Seat).version == 3
