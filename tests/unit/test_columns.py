"""What a column can hold, decided from its type: values in, an answer out."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Text,
    create_engine,
)
from sqlalchemy.dialects import mysql, postgresql

from optilock._columns.kinds import has_places
from optilock._columns.values import can_hold, surely_holds
from optilock.dialects import database_of

SQLITE = create_engine("sqlite://").dialect
MARIADB: Any = mysql.dialect()
POSTGRESQL: Any = postgresql.dialect()


def kept(value: Any, kind: Any, dialect: Any) -> bool:
    return can_hold(value, kind, database_of(dialect).values.limits(dialect), dialect)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (mysql.TINYINT(), 127),
        (mysql.TINYINT(unsigned=True), 255),
        (mysql.MEDIUMINT(), 2**23 - 1),
        (mysql.INTEGER(unsigned=True), 2**32 - 1),
        (mysql.BIGINT(unsigned=True), 2**64 - 1),
        (Integer(), 2**31 - 1),
        (BigInteger(), 2**63 - 1),
    ],
    ids=repr,
)
def test_a_number_has_the_bits_of_its_column(kind: Any, most: int) -> None:
    assert kept(most, kind, MARIADB)
    assert surely_holds(most, kind)
    assert not kept(most + 1, kind, MARIADB)
    assert not surely_holds(most + 1, kind)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (Text(), 65_535),
        (Text(50), 255),
        (mysql.TINYTEXT(), 255),
        (mysql.MEDIUMTEXT(), 2**24 - 1),
        (String(300), 300),
    ],
    ids=repr,
)
def test_a_text_has_the_room_of_its_column(kind: Any, most: int) -> None:
    assert kept("x" * most, kind, MARIADB)
    assert not kept("x" * (most + 1), kind, MARIADB)
    assert kept("x" * (most + 1), kind, SQLITE)
    assert kept("\N{SNOWMAN}" * (most // 3), kind, MARIADB)


def test_bytes_have_the_room_of_their_column() -> None:
    assert kept(b"x" * 65_535, LargeBinary(), MARIADB)
    assert not kept(b"x" * 65_536, LargeBinary(), MARIADB)
    assert kept(b"x" * 65_536, LargeBinary(70_000), MARIADB)
    assert kept(b"x" * 65_536, LargeBinary(), POSTGRESQL)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("999.99", True), ("999.994", True), ("999.995", False), ("-1000", False), ("0.001", True)],
)
def test_a_number_has_the_digits_of_its_column(value: str, expected: bool) -> None:
    for dialect in (MARIADB, POSTGRESQL):
        assert kept(Decimal(value), Numeric(5, 2), dialect) is expected
    assert not kept(Decimal("1e10"), Numeric(), MARIADB)  # DECIMAL(10, 0)
    assert kept(Decimal("1e100"), Numeric(), POSTGRESQL)


def test_types_that_nobody_here_knows_are_left_alone() -> None:
    assert kept(["a", 1], postgresql.ARRAY(Integer), POSTGRESQL)
    assert kept("10.0.0.1", postgresql.INET(), POSTGRESQL)
    assert not surely_holds("10.0.0.1", postgresql.INET())  # so the database is asked


def test_json_of_two_kinds() -> None:
    assert kept({"a": "\0"}, JSON(), POSTGRESQL)
    assert not kept({"a": "\0"}, postgresql.JSONB(), POSTGRESQL)
    assert kept("\ud800", JSON(), POSTGRESQL)
    assert not kept("\ud800", postgresql.JSONB(), POSTGRESQL)
    assert not surely_holds({"a": float("nan")}, JSON())


def test_what_is_certain_everywhere_is_held_by_each() -> None:
    for value, kind in [(7, Integer()), ("x", String(5)), (1.5, Float()), ([1], JSON())]:
        assert surely_holds(value, kind)
        assert all(kept(value, kind, one) for one in (SQLITE, MARIADB, POSTGRESQL))


@pytest.mark.parametrize(
    ("value", "fits"),
    [("1" * 28 + ".5", True), ("9" * 28 + ".99999999999", False), ("1" * 29, False)],
)
def test_a_number_of_more_digits_than_a_decimal_context_has_is_measured(value, fits):
    """The 38 digits of this column are more than the 28 with which Python rounds by default."""
    assert can_hold(Decimal(value), Numeric(38, 10)) is fits


@pytest.mark.parametrize("scale", [-2, 0, 1, 2])
def test_places_are_counted_as_rounding_does(scale):
    for text in ("1.50", "1.500", "0.001", "100", "150", "1E+3", "-0.00", "0", "1E-20", "12.345"):
        number = Decimal(text)
        assert has_places(number, scale) is (number == round(number, scale))
