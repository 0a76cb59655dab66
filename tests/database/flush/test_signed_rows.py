"""Two writers sign a row: the conflict says who was first, and the signatures are no conflict."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, String, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from optilock import (
    ConcurrencyError,
    PreconditionFailed,
    UnitOfWork,
    Versioned,
    entities,
    etag_of,
    events,
    merge_fields,
    retrying,
    unit_of_work,
    watch,
)
from optilock.unit.running_units import outside_units


class Base(DeclarativeBase):
    pass


class Node(Versioned, Base):
    __tablename__ = "signed_nodes"
    __version_author__ = "updated_by"
    __version_time__ = "updated_at"
    __mapper_args__ = {"polymorphic_identity": "node", "polymorphic_on": "kind"}
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    title: Mapped[str] = mapped_column(String(50))
    note: Mapped[str] = mapped_column(String(50), default="")
    updated_by: Mapped[str | None] = mapped_column(String(50), deferred=True)
    updated_at: Mapped[datetime | None] = mapped_column(
        default=datetime(2026, 1, 1), onupdate=lambda: datetime(2026, 5, 1, 12)
    )


class Leaf(Node):
    __tablename__ = "signed_leaves"
    __mapper_args__ = {"polymorphic_identity": "leaf"}
    id: Mapped[int] = mapped_column(ForeignKey(Node.id), primary_key=True)
    colour: Mapped[str] = mapped_column(String(50), default="")


@pytest.fixture
def sessions(engine: Engine, store: Any) -> sessionmaker[Session]:
    store(Node(id=1, title="T"), Leaf(id=2, title="L"), Alone(id=1, title="T"))
    made = watch(sessionmaker(engine))

    @event.listens_for(made, "before_flush")
    def sign(session: Session, *_: Any) -> None:
        for obj in session.dirty:
            obj.updated_by = session.info["user"]

    return made


class Alone(Versioned, Base):
    __tablename__ = "signed_alone"
    __version_author__ = "updated_by"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))
    updated_by: Mapped[str | None] = mapped_column(String(50))


def by_ada(sessions: Any, key: int, values: dict[str, str], model: Any = Node) -> None:
    """A transaction of her own."""
    with sessions.begin() as session:
        session.info["user"] = "Ada"
        obj = session.get_one(model, key)
        for name, value in values.items():
            setattr(obj, name, value)


def edit(sessions: Any, user: str, key: int, values: dict[str, str], first: Any = None) -> None:
    with UnitOfWork(sessions, on_conflict=merge_fields if user == "merger" else None) as session:
        session.info["user"] = user
        obj = session.get_one(Node, key)
        if first is not None:
            by_ada(sessions, key, first)
        for name, value in values.items():
            setattr(obj, name, value)


@pytest.mark.parametrize("key", [1, 2], ids=["base", "joined"])
def test_the_entry_has_author_and_time_of_the_row_that_is_stored(sessions: Any, key: int) -> None:
    """B10: of a joined child, too, where only a column of the parent's table has changed."""
    with pytest.raises(ConcurrencyError, match="last changed by 'Ada' at 2026-05-01T12") as caught:
        edit(sessions, "Bob", key, {"title": "Bob's"}, first={"title": "Ada's"})
    (entry,) = caught.value.entries
    assert (entry.changed_by, entry.changed_at) == ("Ada", datetime(2026, 5, 1, 12))
    assert entry.conflicting == {"title"}


@pytest.mark.parametrize("key", [1, 2], ids=["base", "joined"])
def test_two_signatures_are_no_conflict(sessions: Any, key: int) -> None:
    """B10: edits of different columns merge, and the row has the name of who has written last."""
    edit(sessions, "merger", key, {"note": "mine"}, first={"title": "Ada's"})
    with sessions() as session:
        node = session.get_one(Node, key)
        assert (node.title, node.note, node.updated_by) == ("Ada's", "mine", "merger")


def test_a_stale_tag_of_an_entity_says_who_was_first(sessions: Any) -> None:
    """B10: 412 of one statement."""
    with sessions() as session:
        tag = etag_of(session.get_one(Alone, 1))
    by_ada(sessions, 1, {"title": "Ada's"}, Alone)
    with pytest.raises(PreconditionFailed) as caught, sessions.begin() as session:
        entities.merge(session, Alone, 1, {"title": "Bob's"}, if_match=tag)
    assert caught.value.entries[0].changed_by == "Ada"


class Again(Exception):
    """The program wants another attempt."""


@pytest.mark.parametrize("fails", ["conflict", "later"])
@pytest.mark.parametrize("mode", ["refuse", None])
def test_the_same_signature_again_is_no_value_wanted_again(
    sessions: Any, mode: Any, fails: str
) -> None:
    """B10: a retry signs the row again, also where its author was never read."""
    attempts: list[str] = []

    @unit_of_work(
        sessions, retry=retrying(repeat_values=mode, attempts=3, on=(ConcurrencyError, Again))
    )
    def longer(session: Session) -> None:
        session.info["user"] = "Bob"
        node = session.get_one(Node, 1)
        attempts.append(node.title)
        if len(attempts) == 1 and fails == "conflict":
            by_ada(sessions, 1, {"title": "Ada's"})
        node.title += "!"
        if len(attempts) == 1 and fails == "later":
            session.flush()
            session.rollback()
            with outside_units():
                by_ada(sessions, 1, {"title": "Ada's"})
            raise Again

    said: list[Any] = []
    listener = events.listen(lambda event: said.append(event), written=False)
    try:
        longer()
    finally:
        events.unlisten(listener)
    assert attempts == ["T", "Ada's"]
    assert not [one for one in said if isinstance(one, events.Repeated)]
    with sessions() as session:
        node = session.get_one(Node, 1)
        assert (node.title, node.updated_by) == ("Ada's!", "Bob")
