"""``__version_scopes__``: what a class may declare, and the values that its scopes take."""

from __future__ import annotations

import datetime
import enum
import gc
import pickle
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    configure_mappers,
    declarative_base,
    mapped_column,
    relationship,
)

from optilock import ConfigurationError, Versioned
from optilock._mapping.scopes import scoped_tables
from optilock._watched.scopes.transaction import ScopeVersion, entry_of_scope, runs
from optilock.dialects import database_of
from optilock.errors import Entry
from optilock.preconditions import ETags, Scope
from optilock.tables import exact_text
from tests.support.rooms import ALL, EIGHT, SEVEN, Booking


class State(enum.Enum):
    open = "o"
    closed = "c"


def declared(scopes: Any, **more: Any) -> type[Any]:
    """A class with these scopes, and columns of many types."""
    columns = {
        "id": mapped_column(sa.Integer, primary_key=True),
        "room_id": mapped_column(sa.Integer),
        "price": mapped_column(sa.Numeric(10, 2)),
        "weight": mapped_column(sa.Float),
        "made_at": mapped_column(sa.DateTime),
        "raw": mapped_column(sa.LargeBinary),
        "loose": mapped_column(sa.String(20, collation="NOCASE")),
        "loose_too": mapped_column(sa.String(20, collation="utf8mb4_general_ci")),
        "cited": mapped_column(postgresql.CITEXT),
        "changed": mapped_column(sa.Integer, onupdate=1),
        "doubled": mapped_column(sa.Integer, sa.Computed("room_id * 2")),
        "state": mapped_column(sa.Enum(State)),
        "owner": mapped_column(sa.Uuid),
        "day": mapped_column(sa.Date),
        "open": mapped_column(sa.Boolean),
        "code": mapped_column(sa.String(20)),
    }
    body = {"__tablename__": "things", "__version_scopes__": scopes, **columns, **more}
    return type("Thing", (Versioned, declarative_base()), body)


@pytest.mark.parametrize(
    ("scopes", "why"),
    [
        ("room_id", "write a tuple"),
        ((7,), "write a tuple"),
        ((["room_id"],), "write a tuple"),
        ((("room_id", "room_id"),), "write a tuple"),
        (("rooom",), "not a column attribute"),
        (("version",), "the version itself"),
        (("room_id", "room_id"), "twice"),
        ((("room_id", "day"), ("day", "room_id")), "twice"),
        (("price",), "Numeric"),
        (("weight",), "Float"),
        (("made_at",), "DateTime"),
        (("raw",), "LargeBinary"),
        (("loose",), "NOCASE"),
        (("loose_too",), "utf8mb4_general_ci"),
        (("cited",), "ignores case"),
        (("changed",), "onupdate"),
        (("doubled",), "onupdate"),
    ],
)
def test_a_scope_that_could_miss_a_change_is_refused(scopes, why):
    with pytest.raises(ConfigurationError, match=why):
        declared(scopes)


@pytest.mark.parametrize("option", ["__version_ignore__", "__version_commutes__"])
def test_a_column_that_may_change_unseen_is_refused(option):
    declared(("room_id",), **{option: ("room_id",)})
    with pytest.raises(ConfigurationError, match=option):
        configure_mappers()


def test_a_class_that_is_refused_or_dropped_leaves_no_table():
    gc.collect()
    before = set(scoped_tables)
    kept = declared(("room_id",))
    with pytest.raises(ConfigurationError, match="missing") as refused:
        declared(("room_id",), __version_ignore__=("missing",))
    assert set(scoped_tables) - before == {kept.__table__}
    del refused
    kept = declared(("day",))
    gc.collect()

    assert set(scoped_tables) - before == {kept.__table__}


def test_a_subclass_has_the_scopes_of_its_root():
    class Base(DeclarativeBase):
        pass

    class Animal(Versioned, Base):
        __tablename__ = "animals_of_scopes"
        __version_scopes__ = ("farm",)
        id = mapped_column(sa.Integer, primary_key=True)
        farm = mapped_column(sa.Integer)
        kind = mapped_column(sa.String(10))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}

    class Dog(Animal):
        __mapper_args__ = {"polymorphic_identity": "dog"}

    assert Dog.scope(farm=1) == Animal.scope(farm=1)
    named = {"__mapper_args__": {"polymorphic_identity": "cat"}}
    with pytest.raises(ConfigurationError, match="Declare the scopes in Animal"):
        type("Cat", (Animal,), {"__version_scopes__": ("farm",), **named})


def test_a_scope_is_a_value():
    assert Booking.scope(room_id=7) == SEVEN != EIGHT
    assert len({SEVEN, Booking.scope(room_id=7), ALL}) == 2
    assert pickle.loads(pickle.dumps(SEVEN)) == SEVEN
    assert (repr(SEVEN), repr(ALL)) == ("Booking.scope(room_id=7)", "Booking.scope()")
    assert (SEVEN.model, SEVEN.values, SEVEN.items) == (Booking, (7,), (("room_id", 7),))
    assert isinstance(SEVEN, Scope)


@pytest.mark.parametrize(
    "values", [{"hour": 3}, {"room_id": 7, "hour": 3}, {"room_id": "7"}, {"room_id": True}]
)
def test_other_values_are_refused_before_anything_is_sent(values):
    with pytest.raises(ConfigurationError, match=r"Nothing was sent\."):
        Booking.scope(**values)


def test_a_class_without_scopes_has_no_such_attribute():
    class Base(DeclarativeBase):
        pass

    class Plain(Versioned, Base):
        __tablename__ = "plain_of_scopes"
        id = mapped_column(sa.Integer, primary_key=True)

    assert not hasattr(Plain, "scope")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("room_id", -7, "2:-7"),
        ("room_id", None, "-"),
        ("open", True, "1:1"),
        ("day", datetime.date(2026, 1, 2), "10:2026-01-02"),
        ("owner", uuid.UUID(int=1), f"32:{uuid.UUID(int=1).hex}"),
        ("state", State.open, "4:open"),
        ("code", "a:1,é", "5:a:1,é"),
    ],
)
def test_the_key_has_the_text_of_each_value(name, value, text):
    thing = declared((name,))
    assert thing.scope(**{name: value}).key == f"things({name})={text}"


def test_two_lists_of_values_never_have_one_key():
    thing = declared((("code", "room_id"),))
    values = [("a", None), ("a,-", None), ("1:a", 1), ("1", 11), ("", 1), (None, 1)]
    assert len({thing.scope(code=c, room_id=r).key for c, r in values}) == len(values)


def test_keys_are_written_in_order_and_cut_into_runs():
    found = runs({"d", "b", "e"}, {"c": 0, "a": 1, "e": 2})
    assert found == [(False, ["a"]), (True, ["b"]), (False, ["c"]), (True, ["d", "e"])]


def test_a_tag_names_one_version_of_one_scope():
    plain, signed = ETags(), ETags(keys=["k" * 16], tenant="acme")
    for tags in (plain, signed):
        tag = tags.of_scope(SEVEN).tag(ScopeVersion(3, 1))
        assert tag.endswith('.3-1"')
        assert tags.of_scope(SEVEN).named([tag]) == (ScopeVersion(3, 1),)
        assert tags.of_scope(EIGHT).named([tag]) == ()
    assert plain.of_scope(SEVEN).named(['"x.3-1"', tag, '"', '"."']) == ()
    own = plain.of_scope(SEVEN).tag(ScopeVersion(3, 1))
    for forged in ("3", "3-", "03-1", "3-1-1", "-3-1", "٣-1", "9" * 30 + "-1"):
        assert plain.of_scope(SEVEN).named([own.replace("3-1", forged)]) == ()


def test_an_entry_of_a_scope_is_no_row():
    entry: Entry[Any] = entry_of_scope(SEVEN, demanded=False)
    assert (entry.is_scope, entry.row, entry.identity) == (True, "Booking.scope(room_id=7)", (7,))
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert entry.as_dict()["action"] == "verify"


def test_mariadb_compares_texts_exactly_only_in_some_collations():
    def exact(kind: Any, dialect: Any) -> bool:
        column = sa.Table("t", sa.MetaData(), sa.Column("code", kind)).c.code
        return database_of(dialect).values.is_exact(column, dialect)

    maria = mysql.dialect()
    assert exact(exact_text(20), maria)
    assert exact(sa.Integer(), maria)
    assert exact(sa.Uuid(), maria)
    assert not exact(sa.String(20), maria)
    assert not exact(sa.String(20, collation="utf8mb4_bin"), maria)  # pads with spaces
    assert exact(sa.String(20), postgresql.dialect())
    assert exact(sa.String(20), sqlite.dialect())


def test_a_scope_is_named_before_classes_of_two_bases_are_used() -> None:
    """SQLAlchemy configures both then, or refuses to configure one of them."""

    class Houses(DeclarativeBase):
        pass

    class Rooms(DeclarativeBase):
        metadata = Houses.metadata

    class Room(Rooms):
        __tablename__ = "rooms"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Booking(Versioned, Houses):
        __tablename__ = "bookings"
        __version_scopes__ = ("room_id",)
        id: Mapped[int] = mapped_column(primary_key=True)
        room_id: Mapped[int] = mapped_column(sa.ForeignKey("rooms.id"))
        room = relationship(Room)

    assert str(Booking.scope(room_id=7)) == "Booking.scope(room_id=7)"
