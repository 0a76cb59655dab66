"""What the client had loaded tells who has changed what, and opens no merge."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, composite, mapped_column, synonym

import optilock.asyncio
from optilock import (
    AsyncUnitOfWork,
    BadEntity,
    Entry,
    PreconditionFailed,
    Versioned,
    apply,
    client_wins,
    expect,
    merge_fields,
)
from tests.models import Account, Decided
from tests.models import Base as Shared
from tests.two_writers import Do

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


class Base(DeclarativeBase):
    metadata = Shared.metadata
    type_annotation_map = Shared.type_annotation_map


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
async def test_async_sessions_take_it(async_engine: Any) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(Account.__table__.create)
    async with AsyncUnitOfWork(async_engine) as session:
        session.add(Account(id=1, owner="Ada"))
    async with AsyncUnitOfWork(async_engine) as session:
        (await session.get(Account, 1)).note = "theirs"
    with pytest.raises(PreconditionFailed) as caught:
        async with AsyncUnitOfWork(async_engine) as session:
            await optilock.asyncio.apply(
                session, Account, 1, {"owner": "Eve"}, version=1, seen=LOADED
            )
    assert caught.value.entries[0].conflicting == frozenset()
    await async_engine.dispose()
