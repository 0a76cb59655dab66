"""What a hostile client sends: each is answered as a mistake of the client, soon, and in few words.

A parser that takes quadratic time does not end with these values within the time of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import JSON, Engine, Numeric, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import Versioned, apply, entities, etag_of, expect, watch
from optilock.entities import Idempotency, Operation
from optilock.errors import OptilockError
from optilock.preconditions import merge_changes, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.tokens import Unique
from optilock.web.problems import problem_of

pytestmark = pytest.mark.engines("sqlite-wal")

MANY = 1_000_000
SIGNED = ETags(keys=["a secret of 16 bytes, or more"])
SENT_AGAIN = Idempotency('"8e03978e"', keys=["a secret of 16 bytes, or more"], principal="ada")
TAG = '"gM0kXw2f.1"'


class Base(DeclarativeBase):
    pass


class Sheet(Versioned, Base):
    __tablename__ = "hostile_sheets"
    __version_token__ = Unique()
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str | None] = mapped_column(Text)
    number: Mapped[int | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    data: Mapped[Any | None] = mapped_column(JSON)


class Priced(Versioned, Base):
    """Its key is a decimal number."""

    __tablename__ = "hostile_priced"
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2), primary_key=True)
    title: Mapped[str | None] = mapped_column(Text)


@pytest.fixture
def sessions(engine: Engine, tables: Any, store: Any) -> sessionmaker[Session]:
    tables(Priced)
    store(Sheet(id=1, title="Home", data={"a": 1}))
    return watch(sessionmaker(engine))


#: What takes the names and values of a body.
WAYS: dict[str, Callable[[Session, Sheet, dict[Any, Any]], object]] = {
    "insert": lambda session, _, body: entities.insert(session, Sheet, 2, body),
    "merge": lambda session, sheet, body: entities.merge(
        session, Sheet, 1, body, if_match=etag_of(sheet)
    ),
    "sent again": lambda session, sheet, body: entities.merge(
        session, Sheet, 1, body, if_match=etag_of(sheet), idempotency=SENT_AGAIN
    ),
    "apply": lambda session, sheet, body: apply(session, Sheet, 1, body, expected=etag_of(sheet)),
    "seen": lambda session, sheet, body: expect(sheet, etag_of(sheet), seen=body),
    "form": lambda session, sheet, body: merge_changes(
        session, Sheet, 1, body, seen=sign_seen(sheet, ["title"], etags=SIGNED), etags=SIGNED
    ),
}


def nested(levels: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = make(value)
    return value


def refused(sessions: sessionmaker[Session], call: Callable[[Session, Sheet], object]) -> str:
    """Return the message; the answer is the client's mistake, and the message is short."""
    with sessions() as session:
        sheet = session.get_one(Sheet, 1)
        with pytest.raises(OptilockError) as caught:
            call(session, sheet)
    problem = problem_of(caught.value)
    assert problem is not None
    assert problem.status in (400, 404, 412)
    assert len(str(caught.value)) < 1500
    assert len(problem.content()) < 1500
    return str(caught.value)


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}])
@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_is_nested_deeper_than_python_can_follow_is_refused(sessions, way, make):
    """``json.loads`` gives nearly 1000 levels; writing or copying them failed with RecursionError.

    A value of 150 levels is stored.
    """
    for levels in (201, 900, 990, 100_000):
        deep = nested(levels, make)
        message = refused(sessions, lambda s, one, body={"data": deep}: WAYS[way](s, one, body))
        assert "nested" in message
    with sessions() as session:
        WAYS[way](session, session.get_one(Sheet, 1), {"data": nested(150, make)})
        session.flush()


@pytest.mark.parametrize("way", WAYS)
def test_a_name_of_a_million_characters_is_not_written_into_a_log(sessions, way):
    refused(sessions, lambda session, sheet: WAYS[way](session, sheet, {"x" * MANY: 1}))


@pytest.mark.parametrize(
    "value",
    [
        "9" * MANY,
        " " * MANY + "x",
        " " * MANY + "1" + " " * MANY + "x",
        "1e" + "9" * MANY,
        "1." + "0" * MANY + "x",
        "-" * MANY,
        "1\0",
        "\ud800",
        10**5000,
        float("nan"),
        [1],
        {"": 1},
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("name", ["number", "price"])
@pytest.mark.tenth
def test_what_is_no_number_of_the_column_is_refused(sessions, name, value):
    for way in ("merge", "apply", "form"):
        refused(sessions, lambda session, sheet, way=way: WAYS[way](session, sheet, {name: value}))


KEYS: list[Any] = ["9" * MANY, "x" * MANY, "1" * 30, "1" * 400 + ".5", "\0", "\ud800"]
KEYS += [10**5000, Decimal("1e999999"), 1e300]


def stored_by_sqlite(key: Any) -> bool:
    """Its decimal columns take numbers of any size."""
    return key in ("1" * 30, 1e300)


@pytest.mark.parametrize("model", [Sheet, Priced])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
def test_a_key_that_no_row_can_have_is_the_key_of_no_row(sessions, key, model):
    """A decimal key of 30 digits was an error of Python's decimal numbers."""
    body = {"title": "New"}
    refused(sessions, lambda s, _: entities.merge(s, model, key, body, if_match=TAG))
    if model is Sheet or not stored_by_sqlite(key):
        refused(sessions, lambda s, _: entities.insert(s, model, key, body))
    refused(sessions, lambda s, _: apply(s, model, key, body, expected=TAG))
    batch = [Operation(entities.delete, model, key, if_match="*")] * 2
    refused(sessions, lambda s, _: entities.transaction(s, batch))


@pytest.mark.parametrize("text", ['"a",' * MANY, " " * MANY, '"' + "a" * MANY, "W/" * MANY])
def test_a_million_characters_are_no_tag_no_signed_value_and_no_key_of_a_request(sessions, text):
    body = {"title": "New"}
    refused(sessions, lambda s, _: entities.merge(s, Sheet, 1, body, if_match=text))
    refused(sessions, lambda s, one: expect(one, text))
    refused(sessions, lambda s, _: merge_changes(s, Sheet, 1, body, seen=text, etags=SIGNED))
    refused(sessions, lambda s, _: Idempotency(text, keys=["16 bytes, or more"], principal="ada"))
