"""Classes of other kinds: what is done right, and what is refused with what to use instead."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column, relationship, synonym

from optilock import ConfigurationError, Versioned, entities
from optilock.errors import AlreadyExists, BadEntity, NotFound
from optilock.statements import no_bump
from optilock.tokens import CompareValues, Counter, Manual
from tests.support.entities import KINDS, Base
from tests.support.models import Account, Dog, Ranked, key
from tests.support.tags import tag

# -- one table for several classes -----------------------------------------------------------------


class Pet(Versioned, Base):
    __tablename__ = "ent_pets"
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(10))
    name: Mapped[str | None]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "pet"}


class Cat(Pet):
    lives: Mapped[int | None] = mapped_column(default=9)
    __mapper_args__ = {"polymorphic_identity": "cat"}


def test_a_row_of_another_class_of_the_table_is_not_there(tables, watched, stored):
    tables(Pet)
    session = watched()
    cat = entities.insert(session, Cat, 1, {"name": "Tom"})
    entities.insert(session, Pet, 2, {"name": "Rex"})
    session.commit()
    assert stored(Cat, 1)["lives"] == 9
    for if_match in ("*", tag(Cat, 2, 1), tag(Cat, 2, 7)):
        with pytest.raises(NotFound):
            entities.merge(session, Cat, 2, {"lives": 1}, if_match=if_match)
    cat = entities.replace(session, Cat, 1, {"name": "Tim"}, if_match=cat.etag)
    entities.merge(session, Pet, 1, {"name": "Tam"}, if_match=cat.etag)  # one tag for the row
    session.commit()
    assert (stored(Cat, 1)["name"], stored(Cat, 1)["kind"]) == ("Tam", "cat")
    with pytest.raises(AlreadyExists):
        entities.insert(session, Cat, 2)
    with pytest.raises(BadEntity, match="discriminator"):
        entities.merge(session, Cat, 1, {"kind": "pet"}, if_match="*")
    with pytest.raises(ConfigurationError, match="rows of other classes"):
        entities.insert_or_merge(session, Cat, 1, {"name": "Tom"})


# -- a second unique column ------------------------------------------------------------------------


def test_an_upsert_never_changes_a_row_of_another_key(store, watched, stored):
    """MariaDB's ON DUPLICATE KEY takes any unique key."""
    store(Ranked(id=1, rank=1, name="one"), Ranked(id=2, rank=2, name="two"))
    session = watched()
    for upsert in (entities.insert_or_replace, entities.insert_or_merge):
        for other in (3, 2):
            with pytest.raises((AlreadyExists, IntegrityError)) as caught:
                upsert(session, Ranked, other, {"rank": 1, "name": "mine"})
            if caught.type is AlreadyExists:  # the transaction goes on
                session.commit()
            session.rollback()
    done = entities.insert_or_merge(session, Ranked, 2, {"rank": 3})
    session.commit()
    assert done.version == 2
    assert stored(Ranked, 1) == {"id": 1, "rank": 1, "name": "one", "version": 1}
    assert stored(Ranked, 2) == {"id": 2, "rank": 3, "name": "two", "version": 2}
    assert stored(Ranked, 3) is None


def test_a_second_unique_column_is_the_database_s_to_keep(store, watched):
    store(Ranked(id=1, rank=1))
    with pytest.raises(IntegrityError):
        entities.insert(watched(), Ranked, 2, {"rank": 1})


# -- what is refused -------------------------------------------------------------------------------


class Contract(Versioned, Base):
    __tablename__ = "ent_contracts"
    __version_token__ = Manual(String(40))
    id: Mapped[int] = key()
    title: Mapped[str | None]


class Compared(Versioned, Base):
    __tablename__ = "ent_compared"
    __version_token__ = (Counter(), CompareValues("title"))
    id: Mapped[int] = key()
    title: Mapped[str | None]


class Unversioned(Base):
    __tablename__ = "ent_unversioned"
    id: Mapped[int] = key()


class Basket(Versioned, Base):
    __tablename__ = "ent_orders"
    __version_root_of__ = ("lines",)
    id: Mapped[int] = key()
    title: Mapped[str | None]
    label: Mapped[str | None] = synonym("title")
    lines: Mapped[list[BasketLine]] = relationship(back_populates="order")


class BasketLine(Versioned, Base):
    __tablename__ = "ent_lines"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column(ForeignKey("ent_orders.id"))
    order: Mapped[Basket] = relationship(back_populates="lines")


REFUSED: dict[Any, str] = {
    Dog: "several tables",
    Contract: "Manual",
    Compared: "compares",
    Unversioned: "no version",
    BasketLine: "Basket.lines",
    int: "takes a mapped class",
}


FIRST = """
    from sqlalchemy import ForeignKey, create_engine
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker
    from optilock import ConfigurationError, Versioned, entities, watch

    class Base(DeclarativeBase):
        pass

    class Shops(DeclarativeBase):
        metadata = Base.metadata

    class Shop(Versioned, Shops):
        __tablename__ = "shops"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Basket(Versioned, Base):
        __tablename__ = "baskets"
        __version_root_of__ = ("lines",)
        id: Mapped[int] = mapped_column(primary_key=True)
        shop_id: Mapped[int] = mapped_column(ForeignKey("shops.id"))
        shop: Mapped[Shop] = relationship()
        lines: Mapped[list["Line"]] = relationship()

    class Line(Versioned, Base):
        __tablename__ = "lines"
        id: Mapped[int] = mapped_column(primary_key=True)
        basket: Mapped[int] = mapped_column(ForeignKey("baskets.id"))

    with watch(sessionmaker(create_engine("sqlite://")))() as session:
        try:
            entities.merge(session, Line, 1, {"basket": 2}, if_match="*")
        except ConfigurationError as refused:
            print("Basket.lines" in str(refused))
"""


def test_a_program_whose_first_call_it_is_is_refused_as_well():
    """SQLAlchemy configures the classes when the first of them is used, and not before."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FIRST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.engines("sqlite-wal")
@pytest.mark.parametrize("cls", REFUSED, ids=lambda cls: cls.__name__)
def test_what_one_statement_cannot_write_is_refused(watched, cls):
    calls: list[Any] = [
        (entities.merge, ({},), {"if_match": "*"}),
        (entities.replace, ({},), {"if_match": "*"}),
        (entities.insert, ({},), {}),
        (entities.insert_or_merge, ({},), {}),
        (entities.insert_or_replace, ({},), {}),
        (entities.delete, (), {"if_match": "*"}),
    ]
    for call, values, options in calls[: 5 if cls is Contract else 6]:
        with pytest.raises(ConfigurationError, match=REFUSED[cls]):
            call(watched(), cls, 1, *values, **options)


def test_a_row_whose_version_the_application_makes_is_deleted(store, watched, stored):
    store(Contract(id=1, version="a"), Contract(id=2, version="b"))
    session = watched()
    entities.delete(session, Contract, 1, if_match=tag(Contract, 1, "a"))
    session.commit()
    assert (stored(Contract, 1), stored(Contract, 2)["version"]) == (None, "b")


@pytest.mark.engines("sqlite-wal")
def test_the_root_of_an_aggregate_is_an_entity(tables, watched):
    tables(Basket)
    session = watched()
    first = entities.insert(session, Basket, 1, {"label": "a"})  # a synonym of the title
    entities.merge(session, Basket, 1, {"title": "b"}, if_match=first.etag)
    assert session.get_one(Basket, 1).title == "b"
    with pytest.raises(BadEntity, match="relationship"):
        entities.merge(session, Basket, 1, {"lines": []}, if_match="*")


@pytest.mark.engines("sqlite-wal")
def test_versions_that_are_to_stay_are_not_moved(store, watched):
    store(Account(id=1))
    session = watched()
    with no_bump(session), pytest.raises(ConfigurationError, match="no_bump"):
        entities.merge(session, Account, 1, if_match="*")


@pytest.mark.engines("sqlite-wal")
def test_a_programmer_s_mistakes(tables, watched):
    tables(Account)
    session = watched()
    for bad in ((1, 2), {"id": 1, "x": 2}, {}, None, (None,)):
        with pytest.raises(ConfigurationError, match="primary key"):
            entities.merge(session, Account, bad, if_match="*")
    with pytest.raises(ConfigurationError, match="SQL"):
        entities.merge(session, Account, 1, {"owner": Account.note}, if_match="*")
    for version in ("1", None, True, 1.5):
        with pytest.raises(ConfigurationError, match="Version"):
            entities.merge(session, Account, 1, if_match=entities.Version(version))
    with pytest.raises(ConfigurationError, match="as its session"):
        entities.merge(object(), Account, 1, if_match="*")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="name all of them"):
        entities.merge(session, KINDS["Hash"], 1, {"title": "a"}, if_match="*")
