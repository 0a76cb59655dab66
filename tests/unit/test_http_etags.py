"""A tag is bound to its row, and whoever has no key cannot make a signed one."""

from __future__ import annotations

import enum
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal, Inexact, localcontext
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, ForeignKey, Integer, String, Uuid, create_engine, inspect
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    make_transient_to_detached,
    mapped_column,
    relationship,
    sessionmaker,
)
from sqlalchemy.orm.attributes import set_committed_value

from optilock import ConfigurationError, Versioned, etag_of, watch
from optilock._columns.texts import key_text, text_of, version_in
from optilock.errors import BadPrecondition
from optilock.preconditions import entity_tags
from optilock.preconditions.entity_tags import PLAIN, ETags
from optilock.preconditions.rfc9110 import required
from optilock.tokens import Unique, UtcDateTime
from tests.support.tags import tag

KEYS = ETags(keys=["a secret of 16 b", b"another of 16 by"], tenant="acme")


class Base(DeclarativeBase):
    pass


class Page(Versioned, Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)


class Article(Page):
    __tablename__ = "articles"
    id: Mapped[int] = mapped_column(ForeignKey(Page.id), primary_key=True)


class Picture(Versioned, Base):
    __tablename__ = "pictures"
    __version_token__ = Unique()
    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)


class Cell(Versioned, Base):
    __tablename__ = "cells"
    row: Mapped[str] = mapped_column(String(9), primary_key=True)
    column: Mapped[str] = mapped_column(String(9), primary_key=True)


class Order(Versioned, Base):
    """An aggregate."""

    __tablename__ = "orders"
    __version_root_of__ = ("lines",)
    __version_ignore__ = ("printed",)
    id: Mapped[int] = mapped_column(primary_key=True)
    printed: Mapped[bool] = mapped_column(default=False)
    lines: Mapped[list[Line]] = relationship()


class Line(Versioned, Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int] = mapped_column(ForeignKey(Order.id))
    amount: Mapped[int]


class Plain(Base):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)


def loaded(cls: Any, version: Any = 3, **key: Any) -> Any:
    obj = cls(**key)
    set_committed_value(obj, inspect(cls).version_id_col.key, version)
    make_transient_to_detached(obj)
    set_committed_value(obj, "version", version)
    return obj


@pytest.mark.parametrize("tags", [PLAIN, KEYS], ids=["plain", "signed"])
def test_the_tag_of_one_row_is_that_of_no_other(tags: ETags) -> None:
    rows = [(Page, 1), (Page, 11), (Line, 1), (Cell, ("a", "bc")), (Cell, ("ab", "c"))]
    told = {tags.of(loaded(cls, **names(cls, key))) for cls, key in rows}
    assert len(told) == len(rows)
    for cls, key in rows:
        sent = ", ".join(told)
        assert tags.versions(cls, key, sent) == (3,)  # of all of them, its own alone


def names(cls: Any, key: Any) -> dict[str, Any]:
    columns = [one.key for one in inspect(cls).primary_key]
    return dict(zip(columns, key if isinstance(key, tuple) else (key,), strict=True))


@pytest.mark.parametrize("tags", [PLAIN, KEYS], ids=["plain", "signed"])
def test_a_version_can_be_read_from_a_tag_without_the_row(tags: ETags) -> None:
    page = tags.of(loaded(Page, 3, id=7))
    assert tags.versions(Page, 7, page) == (3,)
    assert tags.versions(Page, "7", required("PUT", {"If-Match": page}).versions) == (3,)
    assert tags.versions(Page, {"id": 7}, f'"x", {page}') == (3,)
    assert tags.versions(Page, 7, ()) == tags.versions(Page, 7, f"W/{page}") == ()
    key, version = UUID(int=1), UUID(int=2)
    picture = tags.of(loaded(Picture, version, id=key))
    assert tags.versions(Picture, str(key), picture) == (version,)


def test_a_row_has_one_tag_whichever_class_it_was_read_as() -> None:
    assert etag_of(loaded(Article, id=7)) == etag_of(loaded(Page, id=7))
    assert PLAIN.versions(Article, 7, etag_of(loaded(Page, id=7))) == (3,)


def test_rows_of_another_tenant_have_other_tags() -> None:
    page = loaded(Page, id=7)
    for keys in ((), ("a secret of 16 b",)):
        acme, other = ETags(keys, tenant="acme"), ETags(keys, tenant="other")
        assert other.versions(Page, 7, acme.of(page)) == ()
        assert acme.versions(Page, 7, acme.of(page)) == (3,)


# -- signed ----------------------------------------------------------------------------------------


def test_a_signed_tag_of_another_version_cannot_be_made_from_one_that_was_seen() -> None:
    seal, _, version = KEYS.of(loaded(Page, 3, id=7)).partition(".")
    assert version == '3"'
    for text in ("2", "4", "33", ""):
        assert KEYS.versions(Page, 7, f'{seal}.{text}"') == ()
    assert KEYS.versions(Page, 7, tag(Page, 7, 3)) == ()  # a plain one
    assert PLAIN.versions(Page, 7, KEYS.of(loaded(Page, 3, id=7))) == ()


def test_a_key_is_changed_while_both_are_known() -> None:
    page, old, new = loaded(Page, id=7), "a secret of 16 b", "another of 16 by"
    before, meanwhile, after = ETags([old]), ETags([new, old]), ETags(new)
    assert meanwhile.of(page) == after.of(page) != before.of(page)
    assert meanwhile.versions(Page, 7, before.of(page)) == (3,)
    assert after.versions(Page, 7, before.of(page)) == ()


def test_every_key_is_compared_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return a == b

    monkeypatch.setattr(entity_tags.hmac, "compare_digest", compare)
    KEYS.versions(Page, 7, KEYS.of(loaded(Page, id=7)))
    assert len(compared) == 2


@pytest.mark.parametrize("wrong", [{"keys": ["short"]}, {"keys": [7]}, {"tenant": 7}], ids=str)
def test_options_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="ETags"):
        ETags(**wrong)


def test_keys_are_not_shown_and_survive_pickling() -> None:
    assert "secret" not in repr(KEYS)
    assert pickle.loads(pickle.dumps(KEYS)) == KEYS


# -- an aggregate, and a part of a row -------------------------------------------------------------


def test_the_tag_of_an_aggregates_root_moves_with_its_parts_and_theirs_not_with_others() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with watch(sessionmaker(engine))() as session:
        order = Order(id=1, lines=[Line(id=1, amount=1), Line(id=2, amount=1)])
        session.add(order)
        session.flush()
        whole, first, second = etag_of(order), *map(etag_of, order.lines)
        order.lines[0].amount = 2
        session.flush()
        assert etag_of(order) != whole
        assert etag_of(order.lines[0]) != first
        assert etag_of(order.lines[1]) == second
        whole, order.printed = etag_of(order), True
        session.flush()
        assert etag_of(order) == whole  # its own bookkeeping is no part of what a tag covers
    engine.dispose()


# -- what no row can have --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "status"), [("3", 400), ("", 400), (3, 400), ([3], 400), ("*", 428), (" * ", 428)]
)
def test_what_is_no_tag_is_the_clients_mistake(wrong: Any, status: int) -> None:
    with pytest.raises(BadPrecondition, match="Page") as caught:
        PLAIN.versions(Page, 7, wrong)
    assert caught.value.status == status


@pytest.mark.parametrize(("model", "key"), [(Plain, 1), (int, 1), (Page, None), (Cell, "a")])
def test_a_class_or_a_key_that_cannot_be_is_the_programs(model: Any, key: Any) -> None:
    with pytest.raises(ConfigurationError):
        PLAIN.versions(model, key, '"x"')


class Colour(enum.Enum):
    RED = 1


ELSEWHERE = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (7, "7"),
        (1, True),
        (1, 1.0),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("1E+2"), 100),
        (Decimal("-0.00"), 0),
        (Decimal("1.20E+5000"), Decimal("12E+4999")),
        (Decimal("1" * 40 + ".50"), Decimal("1" * 40 + ".5")),
        (b"a", bytearray(b"a")),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, 5, tzinfo=ELSEWHERE)),
        (date(2026, 1, 2), "2026-01-02"),
        (Colour.RED, "RED"),
    ],
)
def test_keys_that_are_the_same_to_a_column_have_one_text(one: Any, same: Any) -> None:
    assert key_text(one, "Page") == key_text(same, "Page")


def test_two_numbers_have_two_texts_whatever_the_context_of_the_thread() -> None:
    one, other = Decimal("1" * 40 + ".5"), Decimal("1" * 40 + ".6")
    text = key_text(one, "Page")
    assert text != key_text(other, "Page")
    with localcontext(Context(prec=3, capitals=0, traps=[Inexact])):
        assert key_text(one, "Page") == text
        assert key_text(Decimal("1E+5000"), "Page") == "1E5000"


def test_the_text_of_a_number_is_no_longer_than_a_number_is() -> None:
    for number in ("1E+999999999", "-1E-999999999", "NaN", "-Infinity"):
        assert len(key_text(Decimal(number), "Page")) < 16


def test_a_key_whose_text_would_differ_between_processes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="__str__"):
        key_text(object(), "Page")


TEXTS = st.text("0123456789abcdef-+:.TZ%", max_size=32) | st.integers().map(str)
TYPES = st.sampled_from([Integer(), BigInteger(), Uuid(), Uuid(as_uuid=False), UtcDateTime()])


def test_whatever_text_comes_is_a_version_of_the_column_or_none(tries: Any) -> None:
    @settings(
        max_examples=tries(60, 300, 3_000),
        database=None,
        derandomize=True,
        deadline=None,
    )
    @given(TEXTS, TYPES)
    def run(text: str, kind: Any) -> None:
        version = version_in(text, kind)
        if isinstance(version, int):
            assert -(2**63) <= version < 2**63
        assert version is None or text_of(version, "").startswith(text)

    run()
