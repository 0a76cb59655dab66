"""What a listener sends through its own session while that is flushing, and holds rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import delete, event, select, update
from sqlalchemy.orm import Mapped, Session

from optilock import ConcurrencyError, ConfigurationError, Versioned, merge_fields
from tests.support.models import Animal, Base, Car, Dog, Page, Vehicle, key


class First(Versioned, Base):
    """Its rows are held when the listeners of the second class are called."""

    __tablename__ = "while_1"
    id: Mapped[int] = key()
    text: Mapped[str | None]
    note: Mapped[str | None]


class Second(Versioned, Base):
    __tablename__ = "while_2"
    id: Mapped[int] = key()
    text: Mapped[str | None]


EVENTS = [
    (Second, "before_insert"),
    (Second, "after_insert"),
    (Second, "before_update"),
    (Second, "after_update"),
    (First, "before_update"),
    (First, "after_update"),
    (Session, "before_flush"),
    (Session, "after_flush"),
    (Session, "after_flush_postexec"),
]
#: Called before anything is written.
EARLY = [(Session, "before_flush"), (First, "before_update")]
events = pytest.mark.parametrize("when", EVENTS, ids=lambda it: f"{it[0].__name__}-{it[1]}")
alive = pytest.mark.needs("resolves-in-place")

CHANGES = {
    "class": lambda: update(First).where(First.text.in_(("new", "old"))).values(note="own"),
    "class-by-key": lambda: update(First).where(First.id == 1).values(note="own"),
    "class-all": lambda: update(First).values(note="own"),
    "table": lambda: (
        First.__table__.update().where(First.text.in_(("new", "old"))).values(note="own")
    ),
    "table-all": lambda: First.__table__.update().values(note="own"),
}
WAYS = {
    "execute": lambda session, statement: session.execute(statement),
    "connection": lambda session, statement: session.connection().execute(statement),
}


@contextmanager
def once(session: Session, when: Any, act: Any) -> Iterator[None]:
    """``act`` is called by the event, the first time."""
    waiting = [act]

    def listen(*_: Any) -> None:
        while waiting:
            waiting.pop()()

    target, name = when
    target = session if target is Session else target
    event.listen(target, name, listen)
    try:
        yield
    finally:
        event.remove(target, name, listen)


@pytest.fixture
def rows(store):
    store(*(First(id=n, text="old") for n in (1, 2, 3, 9)), Second(id=1))


def edited(session):
    found = [session.get_one(First, n) for n in (1, 2, 3)]
    for row in (*found, session.get_one(Second, 1)):  # nothing is flushed by reading
        row.text = "new"
    session.add(Second(id=2))
    return found


@events
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_the_session_does_not_conflict_with_it(rows, watched, stored, when, change, way):
    session = watched()
    found = edited(session)
    with once(session, when, lambda: WAYS[way](session, CHANGES[change]())):
        session.flush()
    for row in found:
        row.text = "again"
    session.commit()
    for n in (1, 2, 3):
        assert stored(First, n)["text"] == "again"
    own = (1,) if change == "class-by-key" else (1, 2, 3)
    assert all(stored(First, n)["note"] == "own" for n in own)


@events
@pytest.mark.parametrize("change", CHANGES)
@alive
def test_what_somebody_else_has_written_is_a_conflict_all_the_same(
    rows, watched, other, stored, when, change
):
    session = watched()
    edited(session)
    other(First, 2, text="theirs")
    with (
        once(session, when, lambda: session.execute(CHANGES[change]())),
        pytest.raises(ConcurrencyError) as caught,
    ):
        session.commit()
    assert (First, (2,)) in [(e.model, e.identity) for e in caught.value.entries]
    session.rollback()
    assert stored(First, 2)["text"] == "theirs"


@events
@alive
def test_so_it_is_for_rows_that_are_edited_later(rows, watched, other, stored, when):
    """The object of row 9 is older than its row, and takes no part in the flush."""
    session = watched()
    late = session.get_one(First, 9)
    edited(session)
    other(First, 9, text="theirs")
    with once(session, when, lambda: session.execute(update(First).values(note="own"))):
        session.flush()
    late.text = "ours"
    with pytest.raises(ConcurrencyError):
        session.flush()


@events
@alive
def test_stale_rows_are_merged_around_it(rows, watched, other, stored, when):
    session = watched(merge_fields)
    edited(session)
    other(First, 2, note="theirs")
    own = update(First).where(First.id == 3).values(note="own")
    with once(session, when, lambda: session.execute(own)):
        session.commit()
    assert [stored(First, n)["text"] for n in (1, 2, 3)] == ["new", "new", "new"]
    assert [stored(First, n)["note"] for n in (1, 2, 3)] == [None, "theirs", "own"]


@pytest.mark.parametrize("when", [one for one in EVENTS if one not in EARLY], ids=str)
def test_a_query_sees_what_was_held(rows, watched, when):
    session, seen = watched(), []
    edited(session)
    query = select(First.text).where(First.id < 9)
    with once(session, when, lambda: seen.extend(session.scalars(query))):
        session.flush()
    assert seen == ["new", "new", "new"]


@events
@pytest.mark.parametrize("what", [delete(First), First.__table__.delete()], ids=["class", "table"])
def test_rows_that_it_deletes_are_gone(rows, watched, stored, when, what):
    session = watched()
    late = session.get_one(First, 9)
    edited(session)
    with once(session, when, lambda: session.execute(what.where(First.id == 9))):
        session.flush()
    session.commit()
    assert late not in session
    assert stored(First, 9) is None
    assert stored(First, 1)["text"] == "new"


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (Dog, lambda: update(Dog).values(tricks="own")),
        (Car, lambda: update(Vehicle).values(name="own")),
    ],
    ids=["child", "base"],
)
def test_an_update_that_moves_versions_in_another_table_is_refused(
    store, watched, stored, model, change
):
    store(model(id=1, name="old"), Second(id=1))
    session = watched()
    session.get_one(model, 1).name = "new"
    session.add(Second(id=2))
    with (
        once(session, (Second, "after_insert"), lambda: session.execute(change())),
        pytest.raises(ConfigurationError, match="in another table"),
    ):
        session.flush()
    session.rollback()
    assert stored(model, 1)["name"] == "old"


@pytest.mark.parametrize("dirty", [False, True])
def test_an_update_of_the_table_with_the_version_is_known_to_joined_rows(
    store, watched, stored, dirty
):
    store(*(Dog(id=n, name="old", tricks="old") for n in (1, 2)), Second(id=1))
    session = watched()
    found = [session.get_one(Dog, n) for n in (1, 2)]
    for dog in found if dirty else ():
        dog.tricks = "new"
    session.add(Second(id=2))
    own = update(Animal).values(name="own")
    with once(session, (Second, "after_insert"), lambda: session.execute(own)):
        session.flush()
    for dog in found:
        assert dog.name == "own"
        dog.tricks = "again"
    session.commit()
    assert [(stored(Dog, n)["name"], stored(Dog, n)["tricks"]) for n in (1, 2)] == [
        ("own", "again")
    ] * 2


def test_ignored_columns_leave_the_version(store, watched, stored):
    store(*(Page(id=n, body="old") for n in (1, 2)), Second(id=1))
    session = watched()
    found = [session.get_one(Page, n) for n in (1, 2)]
    for row in found:
        row.body = "new"
    session.add(Second(id=2))
    counted = update(Page).values(views=Page.views + 1)
    with once(session, (Second, "after_insert"), lambda: session.execute(counted)):
        session.flush()
    for row in found:
        row.body = "again"
    session.commit()
    assert [(stored(Page, n)["views"], stored(Page, n)["version"]) for n in (1, 2)] == [(1, 3)] * 2


def test_rows_by_key_are_refused(rows, watched):
    session = watched()
    edited(session)
    act = lambda: session.execute(update(First), [{"id": 9, "version": 1, "note": "own"}])  # noqa: E731
    with (
        once(session, (Second, "after_insert"), act),
        pytest.raises(ConfigurationError, match="while the session is flushing"),
    ):
        session.flush()
