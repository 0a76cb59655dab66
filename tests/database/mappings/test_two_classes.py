"""Two classes over one table: one of them in a transaction; a hierarchy is one class."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, registry

from optilock import (
    ConcurrencyError,
    ConfigurationError,
    Versioned,
    client_wins,
    merge_fields,
    store_wins,
)
from optilock._mapping.tables import is_shared
from optilock.tokens import CompareValues
from tests.support.ids import told


class Base(DeclarativeBase):
    pass


pages = Table(
    "two_classes_pages",
    Base.metadata,
    Column("id", Integer, primary_key=True),
    Column("title", String(50)),
    Column("body", String(50)),
    Column("version", Integer, nullable=False),
)


class Head(Base):
    __table__ = pages
    __mapper_args__ = {"version_id_col": pages.c.version, "exclude_properties": ["body"]}


class Body(Base):
    __table__ = pages
    __mapper_args__ = {"version_id_col": pages.c.version, "exclude_properties": ["title"]}


def columns() -> list[Column[Any]]:
    return [
        Column("id", Integer, primary_key=True),
        Column("title", String(50)),
        Column("body", String(50)),
    ]


mixed = Table("two_classes_mixed", Base.metadata, *columns())
compared = Table("two_classes_compared", Base.metadata, *columns())


class HeadOfMixin(Versioned, Base):
    __table__ = mixed
    __mapper_args__ = {"exclude_properties": ["body"]}


class BodyOfMixin(Versioned, Base):
    __table__ = mixed
    __mapper_args__ = {"exclude_properties": ["title"]}


class HeadCompared(Versioned, Base):
    __table__ = compared
    __version_token__ = CompareValues("title")
    __mapper_args__ = {"exclude_properties": ["body"]}


class BodyCompared(Versioned, Base):
    __table__ = compared
    __version_token__ = CompareValues("body")
    __mapper_args__ = {"exclude_properties": ["title"]}


class Vehicle(Versioned, Base):
    __tablename__ = "two_classes_vehicles"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}


class Car(Vehicle):
    doors: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "car"}


class Boat(Vehicle):
    masts: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "boat"}


FAMILIES = {
    "native": (Head, Body),
    "mixin": (HeadOfMixin, BodyOfMixin),
    "compared": (HeadCompared, BodyCompared),
}


@pytest.fixture(params=FAMILIES)
def classes(request, store):
    """Two classes over one table with the rows 1 and 2."""
    head, body = FAMILIES[request.param]
    store(head(id=1, title="t"), head(id=2, title="t"))
    return head, body


refusal = pytest.raises(ConfigurationError, match=r"Body\w* and Head\w* are two classes over")


@pytest.mark.parametrize("resolver", [None, merge_fields, client_wins, store_wins], ids=told)
@pytest.mark.parametrize("ids", [(1, 1), (1, 2)], ids=["one row", "two rows"])
def test_a_flush_with_objects_of_both_is_refused(classes, watched, stored, resolver, ids):
    """Also where they are different rows: an UPDATE does not say which class it belongs to."""
    head, body = classes
    session = watched(on_conflict=resolver, autoflush=False)
    session.get_one(head, ids[0]).title = "T"
    session.get_one(body, ids[1]).body = "B"
    with refusal:
        session.flush()
    assert session.is_active
    assert len(session.dirty) == 2
    session.close()
    assert (stored(head, ids[0])["title"], stored(body, ids[1])["body"]) == ("t", None)


@pytest.mark.parametrize("classes", ["native", "mixin"], indirect=True)
def test_the_other_object_of_a_row_that_was_written_before_is_refused(classes, watched, stored):
    """It is as old as the row was then: a false conflict with ourselves."""
    head, body = classes
    session = watched()
    one, two = session.get_one(head, 1), session.get_one(body, 1)
    one.title = "T"
    session.flush()
    two.body = "B"
    with refusal:
        session.flush()
    assert two.body == "B"
    with session.no_autoflush:
        session.refresh(two)
    two.body = "B"
    session.commit()
    assert (stored(head, 1)["title"], stored(body, 1)["body"]) == ("T", "B")


@pytest.mark.parametrize(("place", "name"), [(0, "title"), (1, "body")])
def test_one_of_them_at_a_time_is_guarded_as_ever(classes, watched, place, name):
    cls = classes[place]
    session = watched()
    with session.no_autoflush:
        for row in session.query(cls):
            setattr(row, name, "mine")
    theirs = watched()
    setattr(theirs.get_one(cls, 2), name, "theirs")
    theirs.commit()
    with pytest.raises(ConcurrencyError) as caught:
        session.flush()
    [entry] = caught.value.entries
    assert (entry.model, entry.identity) == (cls, (2,))


def test_a_class_that_is_mapped_again_is_one_class():
    mappings = registry()
    table = Table("pages", mappings.metadata, Column("id", Integer, primary_key=True))
    kept = []
    for _ in range(2):
        page = type("Page", (Versioned,), {})
        mapper = mappings.map_imperatively(page, table)
        kept.append(page)
        assert not is_shared(mapper)
        mappings.dispose()


def test_classes_of_one_hierarchy_go_on_together(store, watched, engine):
    store(Car(id=1, doors=2), Boat(id=2, masts=1), Vehicle(id=3))
    session = watched()
    car, boat = session.get_one(Car, 1), session.get_one(Boat, 2)
    car.doors, boat.masts = 4, 3
    session.commit()
    with Session(engine) as again:
        assert (again.get_one(Car, 1).doors, again.get_one(Boat, 2).masts) == (4, 3)
        assert [v.version for v in again.query(Vehicle).order_by(Vehicle.id)] == [2, 2, 1]
