"""Concrete tables: two rows with one key have nothing to do with each other."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Mapped, Session

from optilock import ConcurrencyError, Versioned, expect, merge_fields, verify
from tests.support.models import Base, key
from tests.support.two_writers import Do


class Staff(Versioned, Base):
    __tablename__ = "concrete_staff"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    room: Mapped[int | None]


class Head(Staff):
    __tablename__ = "concrete_heads"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    room: Mapped[int | None]
    __mapper_args__ = {"concrete": True}


@pytest.fixture
def both(store: Do) -> None:
    store(Staff(id=1, name="a"), Head(id=1, name="b"))


@pytest.mark.parametrize("moved", [Staff, Head])
@pytest.mark.parametrize("first", [Staff, Head])
@pytest.mark.usefixtures("both")
@pytest.mark.needs("resolves-in-place")
def test_the_one_that_moved_is_told_and_the_other_is_written(
    watched: Do, other: Do, stored: Do, refused: Do, moved: Any, first: Any
) -> None:
    still = Head if moved is Staff else Staff
    session = watched(autoflush=False)
    mine = {cls: session.get_one(cls, 1) for cls in sorted([Staff, Head], key=lambda c: c != first)}
    other(moved, 1, name="theirs")
    for cls in mine:
        mine[cls].room = 7 if cls is moved else 8
    [entry] = refused(session).entries

    assert (entry.model, entry.changes) == (moved, {"room": 7})
    assert list(session.dirty) == [mine[moved]]
    assert mine[moved].room == 7
    session.refresh(mine[moved], with_for_update=True)
    session.commit()
    assert stored(moved, 1)["room"] is None
    assert stored(still, 1)["room"] == 8


@pytest.mark.parametrize("moved", [Staff, Head])
@pytest.mark.usefixtures("both")
@pytest.mark.needs("resolves-in-place")
def test_each_gets_what_its_resolver_says(watched: Do, other: Do, stored: Do, moved: Any) -> None:
    session = watched(merge_fields, autoflush=False)
    staff, head = session.get_one(Staff, 1), session.get_one(Head, 1)
    other(moved, 1, name="theirs")
    staff.room, head.room = 7, 8
    session.commit()

    names = {Staff: "a", Head: "b", moved: "theirs"}
    for cls, room in ((Staff, 7), (Head, 8)):
        assert (stored(cls, 1)["name"], stored(cls, 1)["room"]) == (names[cls], room)


@pytest.mark.parametrize("promise", [verify, lambda obj: expect(obj, obj.version)])
@pytest.mark.usefixtures("both")
def test_a_promise_is_of_one_of_them(watched: Do, other: Do, promise: Any) -> None:
    session = watched()
    promise(session.get_one(Staff, 1))
    session.get_one(Head, 1).room = 8
    other(Staff, 1, name="theirs")
    with pytest.raises(ConcurrencyError):
        session.commit()


@pytest.mark.usefixtures("both")
def test_and_what_is_undone_too(watched: Do, other: Do, stored: Do) -> None:
    session: Session = watched()
    staff, head = session.get_one(Staff, 1), session.get_one(Head, 1)
    for n in (1, 2):
        head.room = n
        session.flush()
    session.execute(update(Head).values(room=3))
    staff.room = 1
    session.flush()
    session.rollback()
    staff.room = head.room = 9
    session.commit()

    assert stored(Staff, 1)["room"] == stored(Head, 1)["room"] == 9
