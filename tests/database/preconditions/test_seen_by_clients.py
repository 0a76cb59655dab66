"""What the client had loaded tells who has changed what, and opens no merge."""

from __future__ import annotations

import datetime
import enum
import pickle
import uuid
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, Enum, Numeric, String, Text, Uuid
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    composite,
    mapped_column,
    sessionmaker,
    synonym,
    undefer,
)

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    Entry,
    PreconditionFailed,
    Versioned,
    apply,
    client_wins,
    expect,
    merge_fields,
    watch,
)
from optilock.errors import BadEntity
from optilock.preconditions import merge_changes, sign_seen
from optilock.preconditions.entity_tags import ETags
from optilock.resolvers import merge_text, per_field
from optilock.resolvers.diff3 import normalize_line_ends
from tests.support.models import Account, Decided, own_base
from tests.support.two_writers import Do

LOADED = {"owner": "Ada", "note": "n"}


def entry(session: Any, changes: dict[str, Any], **options: Any) -> Entry[Any]:
    with pytest.raises(PreconditionFailed) as caught:
        apply(session, Account, 1, changes, version=1, **options)
    pickle.dumps(caught.value)
    return caught.value.entries[0]


def test_what_the_other_writer_left_alone_does_not_conflict(
    account: Any, watched: Do, other: Do
) -> None:
    other(Account, 1, note="theirs")
    found = entry(watched(), {"owner": "Eve"}, seen=LOADED)
    assert found.original == {"version": 1, **LOADED}
    assert found.changes == {"owner": "Eve"}
    assert found.conflicting == frozenset()
    assert (found.current["owner"], found.current["note"]) == ("Eve", "n")
    assert found.database is not None
    assert (found.database["owner"], found.database["note"]) == ("Ada", "theirs")


def test_what_both_have_changed_conflicts(account: Any, watched: Do, other: Do) -> None:
    other(Account, 1, owner="Bea", note="theirs")
    assert entry(watched(), {"owner": "Eve"}, seen=LOADED).conflicting == {"owner"}
    assert entry(watched(), {"owner": "Bea"}, seen=LOADED).conflicting == frozenset()


def test_a_form_that_sends_every_field_has_changed_those_that_differ(
    account: Any, watched: Do, other: Do
) -> None:
    other(Account, 1, owner="Bea")
    found = entry(watched(), {"owner": "Ada", "note": "mine"}, seen=LOADED)
    assert found.changes == {"note": "mine"}
    assert found.conflicting == frozenset()


def test_of_what_was_not_seen_nobody_knows(account: Any, watched: Do, other: Do) -> None:
    other(Account, 1, note="theirs")
    assert entry(watched(), {"owner": "Eve"}).conflicting == {"owner"}
    assert entry(watched(), {"owner": "Eve"}, seen={"note": "n"}).conflicting == {"owner"}
    assert entry(watched(), {"owner": "Eve"}, seen={}).original == {"version": 1}


def test_of_a_row_that_is_gone_it_tells_the_changes(account: Any, watched: Do, gone: Do) -> None:
    gone(Account, 1)
    found = entry(watched(), {"owner": "Eve", "note": "n"}, seen=LOADED)
    assert (found.database, found.conflicting) == (None, frozenset())
    assert found.original == {"version": 1, **LOADED}
    assert found.changes == {"owner": "Eve"}
    assert found.current == {"version": 1, "owner": "Eve", "note": "n"}


def test_expect_takes_it_too(account: Any, watched: Do, other: Do) -> None:
    other(Account, 1, note="theirs")
    session = watched()
    held = session.get(Account, 1)
    held.owner = "Eve"
    with pytest.raises(PreconditionFailed) as caught:
        expect(held, version=1, seen=LOADED)
    (found,) = caught.value.entries
    assert (found.changes, found.conflicting) == ({"owner": "Eve"}, frozenset())
    assert found.original == {"version": 1, **LOADED}
    for name in ("id", "version", "no_such"):
        with pytest.raises(BadEntity, match="cannot be seen"):
            expect(held, version=1, seen={name: 1})


@pytest.mark.parametrize("value", ["mine", 7, {"a": 1}, [1], b"\xff", float("nan"), "nul\0"])
def test_whatever_was_sent_as_seen_is_compared_and_reaches_no_driver(
    account: Any, watched: Do, other: Do, stored: Do, value: Any
) -> None:
    other(Account, 1, owner="Bea")
    found = entry(watched(), {"owner": "Eve"}, seen={"owner": value, "note": value})
    assert found.conflicting == {"owner"}
    session = watched()
    apply(session, Account, 1, {"owner": "Eve"}, version=2, seen={"owner": value})
    session.commit()
    assert stored(Account, 1)["owner"] == "Eve"


@pytest.mark.parametrize("resolver", [merge_fields, client_wins])
def test_a_forged_one_opens_no_merge(
    account: Any, store: Do, watched: Do, other: Do, stored: Do, resolver: Any
) -> None:
    """Whoever lies about what was seen would otherwise overwrite what nobody has seen."""
    store(Decided(id=1, text="first"))  # its class has a resolver
    for model, name, theirs in ((Account, "owner", "Bea"), (Decided, "text", "theirs")):
        other(model, 1, **{name: theirs})
        session = watched(resolver)
        forged = {name: theirs}  # so that "owner" seems to be changed by the client alone
        with pytest.raises(PreconditionFailed) as caught:
            apply(session, model, 1, {name: "mine"}, version=1, seen=forged)
        assert caught.value.entries[0].conflicting == frozenset()
        session.commit()
        assert (stored(model, 1)["version"], stored(model, 1)[name]) == (2, theirs)

        session = watched(resolver)  # and a row that moves after it was compared
        apply(session, model, 1, {name: "mine"}, version=2, seen=forged)
        other(model, 1, **{name: "later"})
        with pytest.raises(PreconditionFailed):
            session.flush()
        session.rollback()
        assert stored(model, 1)[name] == "later"


Base = own_base()


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __composite_values__(self) -> tuple[int, int]:
        return self.x, self.y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)


class Marked(Versioned, Base):
    __tablename__ = "seen_marked"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    x: Mapped[int]
    y: Mapped[int]
    place: Mapped[Point] = composite("x", "y")
    name: Mapped[str | None] = mapped_column(String(20))
    title = synonym("name")


def test_a_composite_and_a_synonym_are_told_by_their_columns(
    store: Do, watched: Do, other: Do
) -> None:
    store(Marked(id=1, place=Point(1, 2), name="a"))
    other(Marked, 1, y=5)
    with pytest.raises(PreconditionFailed) as caught:
        apply(
            watched(),
            Marked,
            1,
            {"place": Point(9, 2), "title": "b"},
            version=1,
            seen={"place": Point(1, 2), "title": "a"},
        )
    (found,) = caught.value.entries
    assert found.original == {"version": 1, "x": 1, "y": 2, "name": "a"}
    assert found.changes == {"x": 9, "name": "b"}
    assert found.conflicting == {"x", "y"}


@pytest.mark.anyio
async def test_async_sessions_take_it(async_engine: Any, async_store: Any) -> None:
    async_store(Account(id=1, owner="Ada"))
    async with AsyncUnitOfWork(async_engine) as session:
        (await session.get(Account, 1)).note = "theirs"
    with pytest.raises(PreconditionFailed) as caught:
        async with AsyncUnitOfWork(async_engine) as session:
            await optilock.asyncio.apply(
                session, Account, 1, {"owner": "Eve"}, version=1, seen=LOADED
            )
    assert caught.value.entries[0].conflicting == frozenset()


# -- texts of a form -------------------------------------------------------------------------------

BODY = "one\ntwo\nthree\n"


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Sheets(DeclarativeBase):
    pass


class Sheet(Versioned, Sheets):
    """A value of each type that a field of a form can have."""

    __tablename__ = "sheets_of_forms"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)
    late: Mapped[str | None] = mapped_column(Text, deferred=True)
    count: Mapped[int]
    limit: Mapped[int | None]
    price: Mapped[Decimal] = mapped_column(Numeric(8, 2))
    share: Mapped[float]
    done: Mapped[bool]
    color: Mapped[Color] = mapped_column(Enum(Color, name="colors_of_sheets"))
    token: Mapped[uuid.UUID] = mapped_column(Uuid)
    day: Mapped[datetime.date]
    at: Mapped[datetime.datetime]
    hour: Mapped[datetime.time]


STORED: dict[str, Any] = {
    "body": BODY,
    "note": None,
    "late": BODY.replace("\n", "\r\n"),
    "count": 2,
    "limit": None,
    "price": Decimal("1.50"),
    "share": 0.25,
    "done": True,
    "color": Color.RED,
    "token": uuid.UUID(int=7),
    "day": datetime.date(2024, 5, 1),
    "at": datetime.datetime(2024, 5, 1, 10, 30, 15),
    "hour": datetime.time(10, 30),
}
#: As a browser sends the same again.
FORM = {
    "body": BODY.replace("\n", "\r\n"),
    "note": "",
    "late": BODY.replace("\n", "\r\n"),
    "count": "2",
    "limit": "",
    "price": "1.5",
    "share": "0.25",
    "done": "on",
    "color": "RED",
    "token": str(uuid.UUID(int=7)),
    "day": "2024-05-01",
    "at": "2024-05-01T10:30",
    "hour": "10:30",
}
SIGNING = ETags(keys=["a secret of sixteen bytes or more"])


@pytest.fixture
def sheets(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(Sheet(id=1, **STORED))
    return watch(sessionmaker(engine))


def sheet(sessions: sessionmaker[Session]) -> dict[str, Any]:
    with sessions() as session:
        found = session.get(Sheet, 1)
        return {name: getattr(found, name) for name in (*STORED, "version")}


def seen_of_sheet(sessions: sessionmaker[Session]) -> str:
    with sessions() as session:
        found = session.get(Sheet, 1, options=[undefer(Sheet.late)])
        return sign_seen(found, STORED, etags=SIGNING)


def test_a_form_that_comes_back_untouched_is_no_change(sheets: sessionmaker[Session]) -> None:
    """A6: line ends and types are those of the columns before anything is compared."""
    seen = seen_of_sheet(sheets)
    with sheets.begin() as session:
        merge_changes(session, Sheet, 1, FORM, seen=seen, etags=SIGNING)
    with sheets.begin() as session:
        apply(session, Sheet, 1, {k: v for k, v in FORM.items() if k != "note"}, version=1)
    with sheets.begin() as session:
        apply(session, Sheet, 1, FORM, version=1, seen={**FORM, "note": None})
    assert sheet(sheets) == {**STORED, "version": 1}


def test_a_form_whose_other_fields_are_untouched_clashes_with_nobody(
    sheets: sessionmaker[Session],
) -> None:
    """A6: what the other one has written meanwhile stays, field by field."""
    theirs = {
        "note": "theirs",
        "late": "theirs",
        "count": 3,
        "limit": 4,
        "price": Decimal("2.00"),
        "share": 0.5,
        "done": False,
        "color": Color.BLUE,
        "token": uuid.UUID(int=8),
        "day": datetime.date(2024, 6, 1),
        "at": datetime.datetime(2024, 6, 1),
        "hour": datetime.time(11),
    }
    seen = seen_of_sheet(sheets)
    with sheets.begin() as session:
        for name, value in {**theirs, "body": BODY.replace("one", "ONE")}.items():
            setattr(session.get(Sheet, 1), name, value)
    mine = {**FORM, "body": "one\r\ntwo\r\nTHREE\r\n"}

    with pytest.raises(PreconditionFailed) as caught, sheets.begin() as session:
        apply(session, Sheet, 1, mine, version=1, seen={**FORM, "note": None})
    (entry,) = caught.value.entries
    assert entry.changes == {"body": "one\ntwo\nTHREE\n"}
    assert entry.conflicting == {"body"}

    with sheets.begin() as session:
        both = per_field(body=merge_text)
        merge_changes(session, Sheet, 1, mine, seen=seen, etags=SIGNING, on_conflict=both)
    assert sheet(sheets) == {**STORED, **theirs, "body": "ONE\ntwo\nTHREE\n", "version": 3}


def test_expect_compares_what_was_seen_as_the_columns_have_it(
    sheets: sessionmaker[Session],
) -> None:
    """A6: ``seen`` of a form is text, too."""
    with sheets.begin() as session:
        session.get(Sheet, 1).count = 3
    with pytest.raises(PreconditionFailed) as caught, sheets.begin() as session:
        found = session.get(Sheet, 1)
        found.body = "mine"
        expect(found, version=1, seen={"count": "2", "body": FORM["body"]})
    (entry,) = caught.value.entries
    assert entry.original == {"version": 1, "count": 2, "body": BODY}
    assert (entry.changes, entry.conflicting) == ({"body": "mine"}, frozenset())


@pytest.mark.parametrize("stored", ["one\r\ntwo", "one\rtwo", "one\r\ntwo\nthree", ""])
def test_the_stored_line_ends_win(sheets: sessionmaker[Session], stored: str) -> None:
    """A6: what was added in a browser has them, too, and LF where none are stored."""
    with sheets.begin() as session:
        session.get(Sheet, 1).body = stored
    end = "\r\n" if "\r\n" in stored else "\r" if "\r" in stored else "\n"
    with sheets.begin() as session:
        sent = normalize_line_ends(stored).replace("\n", "\r\n") + "\r\nmine"
        apply(session, Sheet, 1, {"body": sent}, version=2)
    assert sheet(sheets)["body"] == stored + end + "mine"


@pytest.mark.parametrize(
    ("name", "text"),
    [("count", "two"), ("count", ""), ("price", "1,5"), ("done", "?"), ("day", "1.5.2024")],
)
def test_a_text_of_no_such_value_is_refused_as_ever(
    sheets: sessionmaker[Session], name: str, text: str
) -> None:
    """A6: what cannot be read is no value of the column."""
    with pytest.raises(BadEntity), sheets.begin() as session:
        apply(session, Sheet, 1, {name: text}, version=1)
