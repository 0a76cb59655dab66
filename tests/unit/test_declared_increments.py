"""``__version_commutes__``: what is refused when it is declared, and what a difference is."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    Numeric,
    SmallInteger,
    String,
)
from sqlalchemy import Computed as Generated
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    composite,
    configure_mappers,
    declarative_base,
    mapped_column,
    relationship,
)
from sqlalchemy.types import TypeDecorator

from optilock import ConfigurationError, Versioned
from optilock._mapped import facts
from optilock.serialize import difference
from optilock.tokens import CompareValues, Counter, Manual, RowVersion, Timestamp, Unique
from tests.support.hash_token import Hash


class Cents(TypeDecorator[Any]):
    impl = Integer
    cache_ok = True


def mapped(kind: Any, names: Any = ("n",), **options: Any) -> Any:
    base = declarative_base()
    members = {
        "__tablename__": "things",
        "__version_commutes__": names,
        "id": Column(Integer, primary_key=True),
        "n": kind if isinstance(kind, Column) else Column(kind),
        "other": Column(Integer),
        **options,
    }
    return type("Thing", (Versioned, base), members)


@pytest.mark.parametrize("kind", [Integer, BigInteger, SmallInteger, Numeric(10, 2)])
@pytest.mark.parametrize("token", [Counter(), Unique(), RowVersion(), Timestamp()])
def test_exact_numbers_add_up(kind: Any, token: Any) -> None:
    thing = mapped(kind, __version_token__=token)
    assert facts(thing.__mapper__).commuting == {thing.__table__.c.n}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (String(9), "integers and Numeric add up exactly"),
        (Boolean, "integers and Numeric add up exactly"),
        (Float, "integers and Numeric add up exactly"),
        (Float(asdecimal=True), "integers and Numeric add up exactly"),
        (Numeric(10, 2, asdecimal=False), "integers and Numeric add up exactly"),
        (Cents, "integers and Numeric add up exactly"),
        (Column(Integer, Generated("other + 1")), "computed by the database"),
        (Column(Integer, ForeignKey("things.id")), "a foreign key"),
    ],
    ids=str,
)
def test_other_columns_are_refused(kind: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        mapped(kind)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("n", r"write __version_commutes__ = \('n',\)"),
        (5, "write the names of attributes"),
        (("m",), "not a column attribute"),
        (("id",), "the primary key"),
        (("version",), "the version itself"),
    ],
)
def test_names_are_those_of_columns(names: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        mapped(Integer, names)


@pytest.mark.parametrize(
    "token",
    [
        Hash("n"),
        Manual(Integer()),
        CompareValues("other"),
        (Counter(), CompareValues("other")),
    ],
    ids=str,
)
def test_a_version_that_cannot_move_by_itself_is_refused(token: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Counter\(\) or Unique\(\)"):
        mapped(Integer, __version_token__=token)


def test_an_ignored_column_is_not_added_to() -> None:
    with pytest.raises(ConfigurationError, match="remove it from one of them"):
        mapped(Integer, __version_ignore__=("n",))


def test_a_misspelt_option_is_told() -> None:
    with pytest.raises(ConfigurationError, match="__version_commutes__ was probably meant"):
        mapped(Integer, (), __version_commute__=("n",))


@pytest.mark.parametrize("together", [("n", "other"), ("pair",)])
def test_what_belongs_together_with_others_is_refused(together: Any) -> None:
    class Base(DeclarativeBase):
        pass

    class Thing(Versioned, Base):
        __tablename__ = "things"
        __version_commutes__ = ("n",)
        __merge_together__ = (("n", "other"),) if together == ("n", "other") else ()
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[int]
        other: Mapped[int]
        if together == ("pair",):
            pair = composite(complex, "n", "other")

    with pytest.raises(ConfigurationError, match="belongs together with other"):
        configure_mappers()


def test_a_subclass_names_its_own_columns_in_the_table_of_the_version() -> None:
    class Base(DeclarativeBase):
        pass

    class Page(Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
        n: Mapped[int]
        children: Mapped[list[Page]] = relationship()
        parent: Mapped[int | None] = mapped_column(ForeignKey("pages.id"))

    with pytest.raises(ConfigurationError, match=r"Name it in Page.__version_commutes__"):

        class Short(Page):
            __version_commutes__ = ("n",)

    with pytest.raises(ConfigurationError, match="is in longs, and the version in pages"):

        class Long(Page):
            __tablename__ = "longs"
            __version_commutes__ = ("m",)
            id: Mapped[int] = mapped_column(ForeignKey(Page.id), primary_key=True)
            m: Mapped[int]


@pytest.mark.parametrize(
    ("before", "now", "more"),
    [
        (5, 6, 1),
        (5, 2, -3),
        (Decimal("0.10"), Decimal("0.30"), Decimal("0.20")),
        (Decimal("0.10"), 1, Decimal("0.90")),
        (None, 1, None),
        (5, None, None),
        (5, True, None),
        (5, 5.5, None),
        (0.1, 0.3, None),
        (Decimal(1), Decimal("NaN"), None),
        (5, "6", None),
    ],
)
def test_a_difference_is_exact_or_there_is_none(before: Any, now: Any, more: Any) -> None:
    assert difference(before, now) == more
