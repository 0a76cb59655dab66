"""By what a request is known when it is sent again: its key, and the bytes of its body."""

from __future__ import annotations

import decimal
import enum
import itertools
import pickle
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock import ConfigurationError, Versioned
from optilock.entities import Idempotency
from optilock.entities.idempotency import Request, body_bytes, length_prefixed, mark_of
from optilock.errors import BadEntity, BadPrecondition
from optilock.preconditions.entity_tags import PLAIN
from optilock.tokens import Unique

KEYS = ["a secret of the server"]


def key_of(header: Any) -> str | None:
    return Idempotency(header, keys=KEYS, principal="ada").key


# -- the header ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (None, None),
        ('"8e03978e-40d5-43e6-bc93-6894a57f9324"', "8e03978e-40d5-43e6-bc93-6894a57f9324"),
        ("8e03978e-40d5-43e6-bc93-6894a57f9324", "8e03978e-40d5-43e6-bc93-6894a57f9324"),
        (' \t"a b, c; d"\t ', "a b, c; d"),
        (r'"a \" b \\ c"', 'a " b \\ c'),
        ("a" * 255, "a" * 255),
        (f'"{"a" * 255}"', "a" * 255),
        ('"' + r"\\" * 255 + '"', "\\" * 255),
    ],
)
def test_a_key_is_a_string_with_or_without_its_quotes(header: str | None, key: str | None) -> None:
    assert key_of(header) == key


BAD = ["", " ", '""', '"', '"a', 'a"', 'a"b"', '"a" "b"', '"a", "b"', "a, b", "a b", "a,b", "a;b"]
BAD += [
    '"a";b=1',
    r'"\a"',
    '"a\\"',
    "a\\b",
    '"a\0"',
    '"a\n"',
    "a\nb",
    '"ä"',
    "ä",
    "\x7f",
    "a" * 256,
]
BAD += [f'"{"a" * 256}"', '"' + r"\\" * 256 + '"', "a" * 1_000_000, '"' * 1_000_000]


@pytest.mark.parametrize("header", BAD, ids=range(len(BAD)))
def test_what_is_no_such_string_is_the_client_s_mistake(header: str) -> None:
    with pytest.raises(BadPrecondition, match="Idempotency-Key") as caught:
        key_of(header)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "given",
    [
        {"keys": []},
        {"keys": ["short"]},
        {"keys": [7]},
        {"principal": ""},
        {"principal": 7},
        {"principal": None},
        {"header": b"abc"},
        {"header": 7},
    ],
    ids=str,
)
def test_what_the_program_gives_is_looked_at(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Idempotency(**{"header": "abc", "keys": KEYS, "principal": "ada", **given})


def test_secrets_are_not_shown() -> None:
    given = Idempotency("abc", keys=KEYS, principal="ada")
    assert KEYS[0] not in repr(given)
    assert pickle.loads(pickle.dumps(given)) == given


# -- bodies ----------------------------------------------------------------------------------------


class Kind(enum.Enum):
    PAGE = 1


class Text(str):
    __slots__ = ()


#: No two of them are the same, though many are equal, or have one text.
VALUES: list[Any] = [
    *(None, "", "None", "1", 1, 1.0, True, Decimal(1), Decimal("1.0"), b"1", 0, False, 0.0, -0.0),
    *(float("nan"), float("inf"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), "nan"),
    *([], {}, [[]], [{}], {"a": []}, {"a": None}, ["a"], ["a", "b"], ["ab"], [["a"], "b"], set()),
    *({"a": "b"}, {"b": "a"}, {"a": 1, "b": 2}, {"a": {"b": 2}}, {1: "a"}, {"1": "a"}, {"a", "b"}),
    *(
        date(2025, 1, 2),
        datetime(2025, 1, 2),
        datetime(2025, 1, 2, tzinfo=UTC),
        time(1),
        "01:00:00",
    ),
    *(
        timedelta(1),
        timedelta(seconds=1),
        UUID(int=1),
        UUID(int=1).hex,
        Kind.PAGE,
        "PAGE",
        "\ud800",
    ),
]


def bytes_of(value: Any) -> bytes:
    return body_bytes({"a": value}, "Page")


def test_no_two_bodies_have_the_same_bytes() -> None:
    for one, other in itertools.combinations(VALUES, 2):
        assert bytes_of(one) != bytes_of(other), (one, other)
    assert body_bytes({"a": "b"}, "Page") != body_bytes({"a": "b", "c": None}, "Page")
    assert body_bytes({"ab": "c"}, "Page") != body_bytes({"a": "bc"}, "Page")


def test_equal_bodies_have_the_same_bytes_whatever_order_and_context() -> None:
    a = {"b": {"x": 1, "y": {3, 20, 100}}, "a": Decimal("1E+30"), "c": (1, 2)}
    b = {"c": [1, 2], "a": Decimal("1E+30"), "b": {"y": {100, 20, 3}, "x": 1}}
    with decimal.localcontext(decimal.Context(prec=3, capitals=0)):
        in_another_context = body_bytes(b, "Page")
    assert body_bytes(a, "Page") == in_another_context
    assert bytes_of(Text("a")) == bytes_of("a")
    assert bytes_of(memoryview(b"a")) == bytes_of(bytearray(b"a")) == bytes_of(b"a")


def test_they_are_the_same_in_every_process_and_release() -> None:
    """Another server, of another Python, may be asked the second time."""
    body = {"b": [1, 2.5, None, True], "a": {"y": "ä", "x": Decimal("1.50")}, "c": date(2025, 1, 2)}
    assert body_bytes(body, "Page") == (
        b"1:ao24:s1:xd8:0 150 -2s1:ys2:\xc3\xa41:bl17:i1:1f3:2.5n0:b1:11:ct10:2025-01-02"
    )


def test_what_has_no_lasting_text_is_refused() -> None:
    for value in (object(), [object()], {"a": 1j}, {object(): 1}, Kind):
        with pytest.raises(ConfigurationError, match=r"Page\.a"):
            bytes_of(value)
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(BadEntity, match="too deeply"):
        bytes_of(cycle)


def test_parts_stay_apart() -> None:
    assert length_prefixed("a", "bc") != length_prefixed("ab", "c") != length_prefixed("abc")


# -- versions and keys -----------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    __version_token__ = Unique()
    id: Mapped[UUID] = mapped_column(primary_key=True)
    title: Mapped[str]


def test_versions_are_the_same_in_every_process_and_release() -> None:
    old = UUID("8e03978e-40d5-43e6-bc93-6894a57f9324")
    row = PLAIN.of_row(inspect(Page), (UUID(int=7),))
    request = Request("merge", row, (old,), {"title": "Home"})
    mark = mark_of(Idempotency('"5b0a"', keys=KEYS, principal="ada"), request)
    assert mark is not None
    assert mark.version == UUID("9e118682-69dc-435f-89b7-b1161f757120")
    assert KEYS[0] not in repr(mark)
    assert mark.is_ours(mark.version)
    assert not mark.is_ours(old)
    assert not mark.is_ours(None)


def test_keys_of_new_rows_need_no_secret_so_that_none_is_missing() -> None:
    one, other = (Idempotency("5b0a", keys=[n * 16], principal="ada") for n in "ab")
    assert one.key_for(Page) == other.key_for(Page)
    assert one.key_for(Page) == UUID("6cd3497a-fd69-4ea8-947f-91242b5674b0")
    keys = {one.key_for(Page), one.key_for(Page, "2"), one.key_for(Page, tenant="acme")}
    silent = Idempotency(None, keys=KEYS, principal="ada")
    assert len(keys | {silent.key_for(Page), silent.key_for(Page)}) == 5
    assert {key.version for key in keys} == {4}


class Letter(Versioned, Base):
    __tablename__ = "letters"
    __version_token__ = Unique()
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "letter"}
    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str]


class Invoice(Letter):
    __mapper_args__ = {"polymorphic_identity": "invoice"}


def test_a_row_of_another_class_of_the_same_table_is_another_row() -> None:
    again = Idempotency("5b0a", keys=KEYS, principal="ada")
    rows = [PLAIN.of_row(inspect(cls), (7,)) for cls in (Letter, Invoice)]
    asked = [Request("insert", row, (), {}) for row in rows]
    one, other = (mark_of(again, request) for request in asked)
    assert one is not None
    assert other is not None
    assert one.version != other.version
