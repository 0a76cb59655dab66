"""One reader of what a client sends: each text that we write is read as the value it was."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from optilock._columns.form_texts import is_read
from optilock._columns.kinds import KINDS, read_key, row_of
from optilock._columns.texts import text_of, version_in
from optilock._columns.values import Limits, can_hold
from optilock.preconditions.form_fields import Field


class State(enum.Enum):
    """One member has two names, and a column stores other texts than the names."""

    OPEN = "open"
    UNLOCKED = "open"
    SHUT = "OPEN"
    HALF = " half open"


def by_value(cls: Any) -> list[str]:
    return [one.value for one in cls]


ZONES = [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-9))]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31))

#: The types of each kind whose values have a text, and some of their values.
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (sa.Integer(), st.integers(-(2**31), 2**31 - 1)),
    (sa.BigInteger(), st.integers(-(2**63), 2**63 - 1)),
    (sa.Numeric(12, 3), st.decimals(-(10**8), 10**8, places=3)),
    (sa.Numeric(12, 0), st.sampled_from([Decimal("1E+2"), Decimal("-0"), Decimal("7E+11")])),
    (sa.Float(), st.floats(-1e30, 1e30).filter(lambda one: one == 0 or abs(one) > 1e-30)),
    (sa.Boolean(), st.booleans()),
    (sa.Enum(State), st.sampled_from(State)),
    (sa.Enum(State, values_callable=by_value), st.sampled_from(State)),
    (sa.Enum("", "a", " a", name="words"), st.sampled_from(["", "a", " a"])),
    (sa.String(255), TEXTS),
    (sa.Uuid(), st.uuids()),
    (sa.Uuid(as_uuid=False), st.uuids().map(str)),
    (sa.DateTime(), MOMENTS),
    (sa.DateTime(timezone=True), MOMENTS.map(lambda one: one.replace(tzinfo=UTC))),
    (sa.Date(), st.dates()),
    (sa.Time(), st.times()),
    (sa.Time(timezone=True), st.times(timezones=st.sampled_from(ZONES[:3:2]))),
    (sa.LargeBinary(20), st.binary(max_size=20)),
]


def in_a_url(value: Any, kind: Any) -> str:
    """Return the text that a program writes into a URL."""
    if isinstance(value, enum.Enum):
        return value.name if kind.enums == ["OPEN", "SHUT", "HALF"] else str(value.value)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


#: Of these no text is a key, or not the one that Python writes.
NO_KEYS = (sa.Boolean, sa.LargeBinary, sa.Float)
#: Of these no value is a version.
NO_VERSIONS = (sa.Boolean, sa.Date, sa.Time)


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda one: repr(one)[:40])
def test_what_is_written_is_read_as_the_value_it_was(kind: Any, values: Any, tries: Any) -> None:
    column = sa.Column("x", kind, nullable=True)

    @settings(max_examples=tries(30, 200, 2_000), database=None, derandomize=True, deadline=None)
    @given(values, st.sampled_from(ZONES))
    def run(value: Any, zone: Any) -> None:
        assert can_hold(value, kind)
        if is_read(kind):
            field = Field("x", "text", column, zone)
            assert field.read(field.shown(value), value) == value
        if not isinstance(kind, NO_VERSIONS) and not isinstance(value, enum.Enum):
            assert version_in(text_of(value, ""), kind) == value
        if not isinstance(kind, NO_KEYS):
            assert read_key(in_a_url(value, kind), kind) == value
        assert read_key(value, kind) == value

    run()


def test_each_kind_is_tried() -> None:
    tried = {id(row_of(KINDS, kind)) for kind, _ in VALUES}
    assert {id(one) for one in KINDS.values() if one.read is not None} == tried


@pytest.mark.parametrize(
    ("kind", "text"),
    [(sa.Float(), "1e9999"), (sa.Integer(), "7.0"), (sa.Integer(), " 7"), (sa.Enum(State), "open")],
)
def test_a_text_of_no_value_is_none_to_every_reader(kind: Any, text: str) -> None:
    lenient = Limits(converts=True, nan=True, infinity=True, nul=True)
    assert not can_hold(text, kind, lenient)
    assert version_in(text, kind) is None
    with pytest.raises(ValueError, match=r"^$"):
        read_key(text, kind)
    if text.strip() == text:
        with pytest.raises(ValueError, match="is not"):
            Field("x", "text", sa.Column("x", kind)).read(text)


def own_type(python_type: type) -> Any:
    """Return a type of a program's own, which no table knows."""
    return type("Own", (sa.types.UserDefinedType,), {"python_type": python_type})()


def test_a_version_of_a_type_of_the_program_is_read_by_its_python_type() -> None:
    assert version_in("7", own_type(int)) == 7
    assert version_in("07", own_type(int)) is None
    assert version_in("7", sa.types.UserDefinedType()) is None
    assert version_in("7", own_type(list)) is None


@pytest.mark.parametrize(
    "version",
    [2**63 + 5, "é" * 300, b"x" * 300, 1e-300, Decimal("1E+100"), datetime(2026, 1, 2, tzinfo=UTC)],
    ids=lambda one: type(one).__name__,
)
def test_what_a_type_of_the_program_can_hold_is_not_guessed(version: Any) -> None:
    """A tag of its row would never match."""
    assert version_in(text_of(version, ""), own_type(type(version))) == version


def test_a_time_with_an_offset_is_one_of_a_column_with_zones_alone() -> None:
    lenient = Limits(converts=True, offsets=True)
    assert can_hold("03:04:05+02:00", sa.Time(timezone=True), lenient)
    assert not can_hold("03:04:05+02:00", sa.Time(timezone=True), Limits(converts=True))
    assert not can_hold("03:04:05+02:00", sa.Time(), lenient)
    with pytest.raises(ValueError, match=r"^$"):
        read_key("03:04:05+02:00", sa.Time())


def test_a_number_is_no_text_in_any_database() -> None:
    assert not can_hold(7, sa.String(20), Limits(converts=True))


@pytest.mark.parametrize("zone", [ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")])
def test_the_first_and_the_last_moment_do_not_break_a_form(zone: Any) -> None:
    field = Field("x", "datetime-local", sa.Column("x", sa.DateTime(timezone=True)), zone)
    for moment in (datetime.min, datetime.max):
        shown = field.shown(moment.replace(tzinfo=UTC))
        assert shown == "" or field.read(shown, moment.replace(tzinfo=UTC)).tzinfo is UTC
    with pytest.raises(ValueError, match="is not a date and a time of"):
        field.read("0001-01-01T00:00" if "Berlin" in str(zone) else "9999-12-31T23:59")
