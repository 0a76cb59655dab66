"""What is known of a mapper, made once and forgotten when the mapping changes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from sqlalchemy import Integer, String, func
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column

from optilock import Versioned
from optilock._mapped import facts
from optilock.tokens import CompareValues, Manual, RowVersion, Unique


def models(**body: Any) -> Any:
    class Base(DeclarativeBase):
        pass

    body = {"__tablename__": "pages", "id": mapped_column("page_id", primary_key=True), **body}
    known = {"id": Mapped[int], "title": Mapped[str], "views": Mapped[int]}
    return type("Page", (Versioned, Base), {**body, "__annotations__": known})


def test_attributes_and_columns_are_told_by_either() -> None:
    page = models(__version_ignore__=("views",))
    known, columns = facts(page.__mapper__), page.__table__.c
    assert known is facts(page.__mapper__)
    assert (known.token, known.keys) == ("version", ("id",))
    assert known.names[columns.page_id] == "id"
    assert known.columns["id"] is columns.page_id
    assert known.ignored == {columns.views}
    assert known.table is page.__table__


def test_the_key_the_version_and_the_class_are_not_edited() -> None:
    page = models(
        kind=mapped_column(String(9)),
        shout=column_property(func.upper("x")),
        __mapper_args__={"polymorphic_on": "kind"},
    )
    assert facts(page.__mapper__).editable == {"title", "views"}
    page.colour = mapped_column(Integer)
    assert facts(page.__mapper__).editable == {"title", "views", "colour"}


def test_a_class_without_a_version_has_the_empty_attribute() -> None:
    page = models(__version_token__=CompareValues("title"))
    known = facts(page.__mapper__)
    assert (known.token, known.compares, known.guarded) == ("", True, True)
    assert known.comparable == {"title"}


def test_who_makes_the_version_is_told_by_its_token() -> None:
    made = {}
    for token in (Unique(), RowVersion(), Manual(String(20))):
        known = facts(models(__version_token__=token).__mapper__)
        made[type(token)] = (known.by_database, known.by_itself, known.by_application)
    assert made == {
        Unique: (False, False, False),
        RowVersion: (True, True, False),
        Manual: (False, False, True),
    }


def test_a_mapping_that_changes_is_asked_anew() -> None:
    page = models()
    assert "colour" not in facts(page.__mapper__).columns
    page.colour = mapped_column(Integer)
    assert "colour" in facts(page.__mapper__).columns
    assert facts(page.__mapper__).ignored == frozenset()
    letter: Any = type(
        "Letter",
        (page,),
        {"stamps": mapped_column(Integer, nullable=True), "__version_ignore__": ("stamps",)},
    )
    assert facts(page.__mapper__).ignored == {letter.__table__.c.stamps}


def test_the_record_goes_with_its_mapper() -> None:
    page = models()
    mapper, known = weakref.ref(page.__mapper__), weakref.ref(facts(page.__mapper__))
    assert known() is not None
    page.registry.dispose()
    del page
    gc.collect()
    assert mapper() is None
    assert known() is None
