"""``optilock check``: columns that every save writes, and times that are rounded."""

from __future__ import annotations

import datetime
import operator

import pytest
from sqlalchemy import JSON, DateTime, PickleType, TypeDecorator, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from optilock import Versioned
from optilock.check import Severity, check
from optilock.testing import count_statements
from optilock.tokens import CompareValues, Counter

pytestmark = pytest.mark.engines("sqlite-wal", "postgresql", "mariadb")


class Point:
    """Pickled by the application; two that are read are never equal."""

    def __init__(self, x):
        self.x = x


class Wrapped(TypeDecorator):
    """JSON that the application wraps in a class without ``__eq__``."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else {"x": value.x}

    def process_result_value(self, value, dialect):
        return None if value is None else Point(value["x"])


class Comparing(Wrapped):
    cache_ok = True

    def compare_values(self, x, y):
        return x is y or (x is not None and y is not None and x.x == y.x)


def shape(token, kind):
    class Base(DeclarativeBase):
        pass

    class Shape(Versioned, Base):
        __tablename__ = "ck_shapes"
        __version_token__ = token
        id: Mapped[int] = mapped_column(primary_key=True)
        point: Mapped[object | None] = mapped_column(kind)
        hidden: Mapped[int | None]

    return Shape


def stored(engine, cls, value):
    cls.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([cls(), cls(point=value)])
        session.commit()


def found(findings):
    return {(f.code, f.subject, f.severity) for f in findings if f.subject != "connection"}


@pytest.mark.parametrize("kind", [PickleType, Wrapped], ids=["pickle", "json"])
@pytest.mark.parametrize(
    ("token", "severity"),
    [(Counter(), Severity.WARNING), (CompareValues.all(), Severity.ERROR)],
    ids=["counter", "values"],
)
def test_values_that_never_equal_themselves_are_seen_in_the_data(engine, kind, token, severity):
    cls = shape(token, kind)
    stored(engine, cls, Point(1))
    assert found(check(cls, engine)) == {("never-equal", "Shape.point", severity)}


@pytest.mark.parametrize("kind", [PickleType(comparator=lambda a, b: a.x == b.x), Comparing()])
def test_a_comparator_settles_it(engine, kind):
    cls = shape(CompareValues.all(), kind)
    stored(engine, cls, Point(1))
    assert found(check(cls, engine)) == set()


def test_columns_of_plain_types_are_not_read(engine):
    cls = shape(Counter(), PickleType)
    stored(engine, cls, Point(1))
    with count_statements(engine) as sent:
        list(check(cls, engine))
    read = [one.text for one in sent.statements if "ck_shapes.point" in one.text]
    assert read
    assert not any("ck_shapes.hidden" in one for one in read)


def test_a_comparator_that_compares_identity_is_seen_without_a_row(engine):
    cls = shape(Counter(), PickleType(comparator=operator.is_))
    cls.metadata.create_all(engine)
    assert found(check(cls, engine)) == {("never-equal", "Shape.point", Severity.WARNING)}


def test_what_cannot_be_read_is_no_reason_to_stop(engine):
    cls = shape(Counter(), PickleType)
    cls.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO ck_shapes (id, point, version) VALUES (1, :junk, 1)"),
            {"junk": b"no pickle"},
        )
    assert found(check(cls, engine)) == set()


def test_an_ignored_column_may_change_in_every_save(engine):
    class Base(DeclarativeBase):
        pass

    class Sheet(Versioned, Base):
        __tablename__ = "ck_sheets"
        __version_token__ = CompareValues.all()
        __version_ignore__ = ("saved", "point")
        id: Mapped[int] = mapped_column(primary_key=True)
        saved: Mapped[int | None] = mapped_column(onupdate=lambda: 7)
        point: Mapped[object | None] = mapped_column(PickleType(comparator=operator.is_))

    Base.metadata.create_all(engine)
    assert found(check(Sheet, engine)) == set()


@pytest.mark.engines("mariadb")
def test_a_compared_column_that_the_database_changes_by_itself(engine):
    class Base(DeclarativeBase):
        pass

    class Sheet(Versioned, Base):
        __tablename__ = "ck_sheets"
        __version_token__ = CompareValues.all()
        id: Mapped[int] = mapped_column(primary_key=True)
        saved: Mapped[datetime.datetime] = mapped_column(DateTime)

    moment = "DATETIME(6) NOT NULL DEFAULT NOW(6) ON UPDATE NOW(6)"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE ck_sheets (id INTEGER PRIMARY KEY, saved {moment})"))
    assert found(check(Sheet, engine)) == {("rewritten", "Sheet.saved", Severity.WARNING)}


@pytest.mark.engines("mariadb", "postgresql")
def test_a_compared_time_that_the_database_rounds(engine):
    class Base(DeclarativeBase):
        pass

    class Sheet(Versioned, Base):
        __tablename__ = "ck_sheets"
        __version_token__ = CompareValues.all()
        id: Mapped[int] = mapped_column(primary_key=True)
        saved: Mapped[datetime.datetime] = mapped_column(DateTime)

    kind = "DATETIME" if engine.dialect.name == "mysql" else "TIMESTAMP(0)"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE ck_sheets (id INTEGER PRIMARY KEY, saved {kind})"))
    assert found(check(Sheet, engine)) == {("resolution", "Sheet.saved", Severity.WARNING)}
