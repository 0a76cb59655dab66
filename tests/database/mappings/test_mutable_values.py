"""Values that are changed in place: what was loaded is told, and merged, or known to be unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sqlalchemy import JSON, Integer, PickleType
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.mutable import MutableComposite, MutableDict, MutableList, MutableSet
from sqlalchemy.orm import Mapped, composite, mapped_column

from optilock import Versioned, client_wins, merge_fields
from optilock.resolvers import merge_json, merge_set, per_field
from tests.support.models import Base, Settings, key

alive = pytest.mark.needs("resolves-in-place")


@dataclasses.dataclass
class Point(MutableComposite):
    x: int
    y: int

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        self.changed()


class Drawing(Versioned, Base):
    __tablename__ = "drawings"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    start: Mapped[Point] = composite(mapped_column("start_x"), mapped_column("start_y"))
    words: Mapped[Any] = mapped_column(MutableSet.as_mutable(PickleType()))
    layers: Mapped[Any] = mapped_column(MutableList.as_mutable(JSON()))


class Lists(Versioned, Base):
    """Types of PostgreSQL."""

    __tablename__ = "lists"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    numbers: Mapped[Any] = mapped_column(MutableList.as_mutable(ARRAY(Integer)))
    plain: Mapped[Any] = mapped_column(ARRAY(Integer))
    data: Mapped[Any] = mapped_column(MutableDict.as_mutable(JSONB()))


class Bare(Base):
    """SQLAlchemy's own version: nobody copies what is loaded."""

    __tablename__ = "bares"
    id: Mapped[int] = key()
    name: Mapped[str | None]
    data: Mapped[Any] = mapped_column(MutableDict.as_mutable(JSON()))
    revision: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": revision}


def a_drawing(store):
    store(Drawing(id=1, name="a", start=Point(1, 2), words={"a"}, layers=[1]))


@alive
def test_lists_sets_and_composites_tell_what_was_loaded(store, watched, other, refused):
    a_drawing(store)
    session = watched()
    drawing = session.get_one(Drawing, 1)
    drawing.start.x = 5
    drawing.words.add("ours")
    drawing.layers.append(2)
    other(Drawing, 1, name="theirs")
    for _ in range(2):
        [entry] = refused(session).entries
        assert entry.changes == {"start_x": 5, "words": {"a", "ours"}, "layers": [1, 2]}
        assert (entry.original["start_x"], entry.original["start_y"]) == (1, 2)
        assert (entry.original["words"], entry.original["layers"]) == ({"a"}, [1])
        assert entry.conflicting == frozenset()


@alive
def test_changes_in_place_of_both_sides_are_merged(store, watched, other, stored):
    a_drawing(store)
    session = watched(per_field(words=merge_set, layers=merge_json))
    drawing = session.get_one(Drawing, 1)
    drawing.start.x = 5
    drawing.words.add("ours")
    other(Drawing, 1, words={"a", "theirs"}, layers=[1, 3])
    session.commit()

    row = stored(Drawing, 1)
    assert row["words"] == {"a", "ours", "theirs"}
    assert (row["start_x"], row["start_y"], row["layers"]) == (5, 2, [1, 3])
    assert (drawing.start, drawing.words) == (Point(5, 2), row["words"])
    drawing.start.y = 10  # the composite and the set are the row's own again
    drawing.words.add("more")
    session.commit()
    assert stored(Drawing, 1)["start_y"] == 10
    assert "more" in stored(Drawing, 1)["words"]


@alive
def test_after_a_merge_the_originals_are_what_was_merged(store, watched, other, refused):
    store(Settings(id=1, data={"a": 1}, name="x"))
    session = watched(per_field(data=merge_json))
    row = session.get_one(Settings, 1)
    row.data["ours"] = 1
    other(Settings, 1, data={"a": 1, "theirs": 1})
    session.commit()
    assert row.data == {"a": 1, "ours": 1, "theirs": 1}
    row.data["ours"] = 2
    other(Settings, 1, data={"a": 1, "ours": 9, "theirs": 1})
    [entry] = refused(session).entries

    assert entry.original["data"] == {"a": 1, "ours": 1, "theirs": 1}


@alive
def test_a_change_that_nobody_flagged_is_no_part_of_the_original(store, watched, other, refused):
    """Only the name is written: the row still holds the old value."""
    store(Settings(id=1, plain={"deep": {"m": 0}}, name="x"))
    session = watched()
    row = session.get_one(Settings, 1)
    row.plain["deep"]["m"] = 1
    row.name = "first"
    session.flush()
    session.commit()
    other(Settings, 1, name="theirs")
    session.rollback()
    row.plain["deep"]["m"] = 1
    row.name = "second"
    other(Settings, 1, name="theirs again")
    [entry] = refused(session).entries

    assert entry.original["plain"] == entry.database["plain"] == {"deep": {"m": 0}}


@alive
@pytest.mark.engines("postgresql")
def test_arrays_and_jsonb_tell_what_was_loaded(store, watched, other, refused):
    store(Lists(id=1, name="a", numbers=[1], plain=[1], data={"a": [1]}))
    session = watched()
    row = session.get_one(Lists, 1)
    row.numbers.append(2)
    row.data["b"] = 1
    row.plain = [*row.plain, 3]
    other(Lists, 1, name="theirs")
    [entry] = refused(session).entries

    assert entry.changes == {"numbers": [1, 2], "plain": [1, 3], "data": {"a": [1], "b": 1}}
    assert entry.original["numbers"] == entry.original["plain"] == [1]
    assert entry.original["data"] == {"a": [1]}


@alive
@pytest.mark.parametrize("resolver", [merge_fields, per_field(data=merge_json)])
def test_where_nobody_knows_what_was_loaded_nothing_is_merged(
    store, watched, other, refused, resolver
):
    store(Bare(id=1, name="a", data={"a": 1}))
    session = watched(resolver)
    row = session.get_one(Bare, 1)
    row.data["ours"] = 1
    other(Bare, 1, name="theirs")
    error = refused(session)

    assert "data" not in error.entries[0].original
    assert error.entries[0].conflicting == {"data"}
    assert "before" in error.__notes__[0] or "original is unknown" in error.__notes__[0]


@alive
def test_where_nobody_knows_what_was_loaded_a_side_can_be_chosen(store, watched, other, stored):
    store(Bare(id=1, name="a", data={"a": 1}))
    session = watched(client_wins)
    row = session.get_one(Bare, 1)
    row.data["ours"] = 1
    other(Bare, 1, name="theirs")
    session.commit()

    assert (stored(Bare, 1)["data"], stored(Bare, 1)["name"]) == ({"a": 1, "ours": 1}, "theirs")
