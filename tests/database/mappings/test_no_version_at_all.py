"""A class that says ``__version_token__ = None`` has no version, whatever is above it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, inspect, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from optilock import ConfigurationError, Versioned, watch
from optilock._mapped import facts
from optilock.check import check
from optilock.testing.counting import count_statements
from optilock.tokens import Counter
from tests.support.migrating import revise, run


class Base(Versioned, DeclarativeBase):
    """All classes are versioned, but for those that say otherwise."""


class Page(Base):
    __tablename__ = "none_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


class Log(Base):
    __tablename__ = "none_logs"
    __version_token__ = None
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]
    kind: Mapped[str] = mapped_column(String(10), default="log")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "log"}


class Short(Log):
    """Rows of the same table."""

    __mapper_args__ = {"polymorphic_identity": "short"}


class Signed(Log):
    """Has a version again, in its own table."""

    __tablename__ = "none_signed"
    __version_token__ = Counter()
    id: Mapped[int] = mapped_column(ForeignKey("none_logs.id"), primary_key=True)
    by: Mapped[int]
    __mapper_args__ = {"polymorphic_identity": "signed"}


class Apart(Page):
    """A concrete class has a table of its own."""

    __tablename__ = "none_apart"
    __version_token__ = None
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]
    __mapper_args__ = {"concrete": True}


class Native(Base):
    """It says so to the mixin, and has SQLAlchemy's own versioning."""

    __tablename__ = "none_natives"
    __version_token__ = None
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


WITHOUT = [Log, Short, Apart]


@pytest.mark.parametrize("cls", WITHOUT)
def test_it_has_no_column_and_no_token(cls):
    assert not facts(inspect(cls)).guarded
    assert "version" not in cls.__table__.columns
    assert not hasattr(cls, "version") or cls is Apart


def test_others_keep_theirs():
    assert Signed.__table__.c.version is inspect(Signed).version_id_col
    assert Native.__table__.c.revision is inspect(Native).version_id_col
    assert "version" in Page.__table__.columns


@pytest.mark.parametrize("cls", WITHOUT)
def test_its_rows_are_written_as_those_of_any_other_class(engine, tables, store, stored, cls):
    tables(Signed)
    store(cls(id=1, n=1))
    with watch(sessionmaker(engine), strict=True).begin() as session:
        row = session.get_one(cls, 1)
        row.n = 2
        with count_statements(engine) as sent:
            session.flush()
        assert sent.count == 1
        assert "version" not in sent.statements[0].text
    assert stored(cls, 1)["n"] == 2
    with watch(sessionmaker(engine), strict=True).begin() as session:
        session.delete(session.get_one(cls, 1))
    assert stored(cls, 1) is None


def test_a_class_below_with_a_token_is_checked(engine, store, other, watched, refused):
    store(Signed(id=1, n=1, by=1))
    session = watched()
    session.get_one(Signed, 1).by = 2
    other(Signed, 1, by=3)
    refused(session)


def test_rows_that_have_a_version_cannot_do_without():
    with pytest.raises(ConfigurationError, match=r"rows are rows of Page, .* None on Page"):

        class Joined(Page):
            __tablename__ = "none_joined"
            __version_token__ = None
            id: Mapped[int] = mapped_column(ForeignKey("none_pages.id"), primary_key=True)


def test_the_check_does_not_miss_a_version(engine, tables):
    tables(Log, Apart, Page)
    findings = check([Log, Apart, Page], engine)
    assert "no-version" not in {found.code for found in findings}


def models(token: Any) -> Any:
    """Metadata with one class."""

    class Base(Versioned, DeclarativeBase):
        pass

    class Note(Base):
        __tablename__ = "none_notes"
        __version_token__ = token
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.info["class"] = Note
    return Base.metadata


def test_autogenerate_adds_none_and_drops_the_one_that_was(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE none_notes (id INTEGER NOT NULL PRIMARY KEY)"))
        connection.execute(text("INSERT INTO none_notes (id) VALUES (1)"))
    without = models(None)
    assert revise(engine, without).empty

    revision = revise(engine, models(Counter()))
    assert "add_version_column('none_notes'" in revision.upgrade
    run(engine, revision, revision.upgrade)
    assert "drop_version_column('none_notes'" in revise(engine, without).upgrade
