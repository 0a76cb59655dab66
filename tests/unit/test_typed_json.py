"""Values go through JSON and come back in their types."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import Any

import pytest

from optilock._columns.texts import dump_values, load_values
from tests.support.ids import told


class Colour(enum.Enum):
    RED = 1


VALUES: list[Any] = [
    None,
    True,
    7,
    2**70,
    1.5,
    float("inf"),
    "text",
    "\ud800",
    "nul\0",
    Decimal("1.50"),
    uuid.UUID(int=5),
    b"\0\xff",
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4, 5),
    datetime.timedelta(days=-3, microseconds=1),
    {1, "a"},
    frozenset({Decimal("1.5")}),
    (1, (2, "b")),
    [1, [Decimal("2"), {"a": uuid.UUID(int=1)}]],
    {"a": {"": ["decimal", "1"]}, "b": []},
    {"": 1},
    {1: "a", None: 2},
    Colour.RED,
]


@pytest.mark.parametrize("value", VALUES, ids=told)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    text = dump_values({"a": value, "": value})
    back = load_values(text, lambda name: Colour)
    assert back == {"a": value, "": value}
    assert type(back["a"]) is type(value)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [object(), Text("a"), 1j, [object()], {"a": range(3)}], ids=told)
def test_a_type_that_has_no_text_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        dump_values({"a": value})
