"""Rows with a version on every engine: ignored columns, missing versions, rows made again."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, String, delete, func, insert, select, text, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    load_only,
    mapped_column,
    relationship,
    sessionmaker,
)
from sqlalchemy.orm.exc import StaleDataError

from optilock import ConcurrencyError, ConfigurationError, Versioned, client_wins, watch
from optilock.tokens import Unique


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


class Book(Versioned, Base):
    """With dependents."""

    __tablename__ = "vr_books"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str]
    chapters: Mapped[list[Chapter]] = relationship(cascade="all, delete-orphan")


class Chapter(Base):
    __tablename__ = "vr_chapters"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    book_id: Mapped[int] = mapped_column(ForeignKey("vr_books.id"))


class Tool(Base):
    """Without a version; its child has one."""

    __tablename__ = "vr_tools"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "tool"}


class Saw(Versioned, Tool):
    __tablename__ = "vr_saws"
    id: Mapped[int] = mapped_column(ForeignKey("vr_tools.id"), primary_key=True)
    teeth: Mapped[int]
    __mapper_args__ = {"polymorphic_identity": "saw"}


class Clip(Versioned, Base):
    """An ignored column, and one that Python fills in with every UPDATE."""

    __tablename__ = "vr_clips"
    __version_ignore__ = ("views",)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    views: Mapped[int] = mapped_column(default=0)
    touched: Mapped[int] = mapped_column(default=0, onupdate=1)


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
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(*(Page(id=n, title="old") for n in range(1, 5)))
    store(*(Dog(id=n, name="Rex") for n in range(1, 4)))
    store(Ticket(id=1, text="old"), Seat(id=1, text="old"), Clip(id=1))
    store(Book(id=1, title="old", chapters=[Chapter(id=1), Chapter(id=2)]))
    store(*(Saw(id=n, name="old", teeth=8) for n in range(1, 4)))
    return watch(sessionmaker(engine, expire_on_commit=False))


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


def test_a_column_that_every_update_fills_in_is_filled_in_beside_an_ignored_one(sessions) -> None:
    with sessions() as session:
        clip = session.get_one(Clip, 1)
        clip.views = 1
        session.commit()
        assert (clip.views, clip.touched, clip.version) == (1, 1, 1)
    after = stored(sessions, Clip)
    assert (after.views, after.touched, after.version) == (1, 1, 1)


# -- the version is read with the row --------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_were_read_in_part_are_checked_all_the_same(sessions, rows) -> None:
    with sessions() as session:
        query = select(Page).options(load_only(Page.title)).order_by(Page.id).limit(rows)
        pages = session.scalars(query).all()
        session.commit()
        somebody_else(sessions, Page, 1, title="theirs")
        for page in pages:
            page.title = "mine"
        with pytest.raises(ConcurrencyError) as caught:
            session.commit()
        assert [entry.identity for entry in caught.value.entries] == [(1,)]
        session.rollback()
    assert stored(sessions, Page).title == "theirs"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_versioned_child_is_checked_though_its_parent_was_asked_for(sessions, rows) -> None:
    with sessions() as session:
        tools = session.scalars(select(Tool).order_by(Tool.id).limit(rows)).all()
        session.commit()
        somebody_else(sessions, Saw, 1, name="theirs")
        for tool in tools:
            tool.name = "mine"
        with pytest.raises(ConcurrencyError) as caught:
            session.commit()
        assert [entry.identity for entry in caught.value.entries] == [(1,)]
        session.rollback()
    assert stored(sessions, Saw).name == "theirs"


@pytest.mark.needs("row-locks")
def test_a_parent_whose_child_is_versioned_can_be_locked(sessions) -> None:
    """The child's table is joined from outside, which PostgreSQL locks only without the child."""
    with sessions() as session:
        query = select(Tool).where(Tool.id == 1).with_for_update(of=Tool.__table__)
        assert session.scalars(query).one().version == 1


def test_a_stale_copy_merged_over_an_expired_object_writes_nothing(sessions) -> None:
    """trap 33"""
    with sessions() as session:
        page = session.get_one(Page, 1)
        copy = pickle.loads(pickle.dumps(page))
        copy.title = "mine"
        session.commit()
        session.expire_all()
        somebody_else(sessions, Page, 1, title="theirs")
        with pytest.raises(StaleDataError, match="does not match existing version"):
            session.merge(copy)
        session.commit()
        assert page.title == "theirs"
    assert (stored(sessions, Page).title, stored(sessions, Page).version) == ("theirs", 2)


# -- rows without a version ------------------------------------------------------------------------


@pytest.fixture
def nullable(sessions, engine: Engine) -> None:
    """The same, for tables that others depend on."""
    kind = {"postgresql": "ALTER COLUMN version DROP NOT NULL"}.get(
        engine.dialect.name, "MODIFY version BIGINT"
    )
    with engine.begin() as connection:
        for table in ("vr_books", "vr_saws"):
            if engine.dialect.name == "sqlite":
                connection.execute(text("PRAGMA writable_schema = ON"))
                connection.execute(
                    text(
                        "UPDATE sqlite_master SET sql ="
                        " replace(sql, 'version BIGINT DEFAULT 1 NOT NULL', 'version BIGINT')"
                    )
                )
                connection.execute(text("PRAGMA writable_schema = RESET"))
            else:
                connection.execute(text(f"ALTER TABLE {table} {kind}"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE vr_books SET version = NULL"))
        connection.execute(text("UPDATE vr_saws SET version = NULL WHERE id = 1"))


@pytest.mark.usefixtures("nullable")
def test_a_row_without_a_version_keeps_what_depends_on_it(sessions) -> None:
    with sessions() as session:
        book = session.get_one(Book, 1)
        session.delete(book)
        with pytest.raises(ConfigurationError, match="UPDATE vr_books SET version = 1 WHERE"):
            session.commit()
        assert session.is_active
        assert book in session.deleted
        with session.no_autoflush:
            assert session.scalar(select(func.count()).select_from(Chapter)) == 2
        session.rollback()
    with sessions() as session:
        assert len(session.get_one(Book, 1).chapters) == 2


@pytest.mark.usefixtures("nullable")
@pytest.mark.parametrize("rows", [1, 3])
def test_of_a_row_without_a_version_no_table_is_written(sessions, rows) -> None:
    """The parent's table is written first, and carries no version."""
    with sessions() as session:
        saws = session.scalars(select(Saw).order_by(Saw.id).limit(rows)).all()
        for saw in saws:
            saw.name = "mine"
            saw.teeth = 9
        with pytest.raises(ConfigurationError, match=r"Saw \(1,\) has no version"):
            session.commit()
        assert list(session.dirty) == [saws[0]]
        session.expunge(saws[0])
        session.commit()
    found = [stored(sessions, Saw, n) for n in range(1, rows + 1)]
    assert [(saw.name, saw.teeth) for saw in found] == [("old", 8), *[("mine", 9)] * (rows - 1)]


# -- rows made again -------------------------------------------------------------------------------


def make_again(sessions: sessionmaker[Session], model: Any) -> None:
    with sessions.begin() as session:
        session.execute(delete(model).where(model.id == 1))
        session.execute(insert(model), [{"id": 1, "text": "another"}])


def test_with_counter_it_can_which_the_manual_says(sessions) -> None:
    with sessions() as session:
        seat = session.get_one(Seat, 1)
        session.commit()
        make_again(sessions, Seat)
        seat.text = "mine"
        session.commit()
    assert stored(sessions, Seat).text == "mine"


# -- a plain session -------------------------------------------------------------------------------


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
