"""Groups of columns: what is refused when they are declared, and what a resolver does with them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Computed as Generated
from sqlalchemy import inspect
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    column_property,
    composite,
    mapped_column,
    relationship,
    sessionmaker,
    synonym,
)

from optilock import ConfigurationError, Versioned, watch
from optilock._mapped import facts, joined_groups
from optilock.errors import Computed, Entry
from optilock.resolvers import per_field
from optilock.resolvers.resolution import Resolution
from optilock.resolvers.rules import check_on_conflict, merge_fields
from optilock.tokens import Counter


class Base(DeclarativeBase):
    pass


class Page(Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[int]
    end: Mapped[int]
    begin = synonym("start")


class Other(Base):
    __tablename__ = "others"
    id: Mapped[int] = mapped_column(primary_key=True)


READ = {"id": 1, "start": 1, "end": 10, "version": 1}


def entry(ours: dict[str, Any], theirs: dict[str, Any], model: type[Any] = Page) -> Entry[Any]:
    return Entry(
        model=model,
        identity=(1,),
        kind="updated",
        action="update",
        original=READ,
        current={**READ, **ours},
        database={**READ, **theirs, "version": 2},
        changes=ours,
        conflicting={n for n in ours if n in theirs and ours[n] != theirs[n]},
        token="version",
    )


CROSSED = entry({"start": 9}, {"end": 2})


# -- what a resolver does with its groups ----------------------------------------------------------


@pytest.mark.parametrize("names", [("start", "end"), ["end", "begin"], {"start", "end"}])
def test_a_resolver_refuses_what_its_groups_keep_together(names: Any) -> None:
    for resolver in (merge_fields(together=[names]), per_field(together=[names])):
        resolution = resolver(CROSSED)
        assert resolution == Resolution.reject()
        assert resolution.reason == "both sides changed columns that belong together: end, start"
    assert merge_fields(CROSSED) == Resolution.write({})


def test_a_value_that_the_database_computes_is_no_value_of_theirs() -> None:
    ours = {"start": Computed("start")}
    assert merge_fields(together=[("start", "end")])(entry(ours, {"end": 2})).decision == "reject"


def test_overlapping_groups_are_one_group() -> None:
    assert joined_groups([("a", "b"), ("c", "d"), ("e",), ("d", "a")]) == (frozenset("abcd"),)
    assert joined_groups([]) == joined_groups([("a", "a")]) == ()


def test_a_group_of_another_class_says_nothing() -> None:
    resolver = merge_fields(together=[("width", "height")])
    assert resolver(CROSSED) == Resolution.write({})


def test_a_misspelt_name_comes_out_where_the_class_has_the_others() -> None:
    resolver = merge_fields(together=[("start", "ennd")])
    with pytest.raises(ConfigurationError, match=r"'ennd'.*of Page\. 'end' was probably meant"):
        resolver(CROSSED)


def test_classes_without_groups_are_merged_as_before() -> None:
    assert facts(inspect(Page)).together == ()
    crossed = entry({"start": 9}, {"end": 2}, model=type("Unmapped", (), {}))
    assert merge_fields(crossed) == Resolution.write({})
    assert merge_fields(together=[("start", "end")])(crossed) == Resolution.reject()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_resolver_keeps_its_groups(copied: Callable[[Any], Any]) -> None:
    resolver = per_field(start=max, together=[("start", "end")])
    assert repr(resolver) == "per_field(start=max, together=(('start', 'end'),))"
    assert copied(resolver) == resolver
    assert hash(copied(resolver)) == hash(resolver)
    assert resolver != per_field(start=max)


NO_GROUPS = ["start", ("start", "end"), [("start",)], [("start", "start")], [(1, 2)], {"a": "b"}, 3]


@pytest.mark.parametrize("value", NO_GROUPS)
def test_what_is_no_group_is_refused_when_a_resolver_is_made(value: Any) -> None:
    for make in (merge_fields, per_field):
        with pytest.raises(ConfigurationError, match=r"together is .*together = \(\('start'"):
            make(together=value)


def test_the_groups_for_a_class_are_checked_when_they_are_named() -> None:
    check_on_conflict({Page: merge_fields(together=[("begin", "end")])})
    with pytest.raises(ConfigurationError, match=r"names ennd, .* end was probably meant"):
        check_on_conflict({Page: merge_fields(together=[("start", "ennd")])})
    for name in ("version", "id", "metadata"):
        with pytest.raises(ConfigurationError, match=f"names {name}, which Page does not have or"):
            check_on_conflict({Page: merge_fields(together=[("start", name)])})
    with pytest.raises(ConfigurationError, match="which Other does not have"):
        check_on_conflict({Other: per_field(together=[("start", "end")])})


@pytest.mark.parametrize("names", [("begin", "end"), ("start", "place"), ("start", "ennd")])
def test_the_groups_of_the_resolver_of_a_class_are_checked_when_it_is_mapped(names: Any) -> None:
    resolver = merge_fields(together=[names])
    if "ennd" not in names:
        assert booking((), resolver).__on_conflict__ is resolver
        return
    with pytest.raises(ConfigurationError, match=r"names ennd.* end was probably meant"):
        booking((), resolver)


# -- what a class declares -------------------------------------------------------------------------


@dataclasses.dataclass
class Span:
    start: int
    end: int


def booking(groups: Any, resolver: Any = None) -> Any:
    class Own(DeclarativeBase):
        pass

    class Guest(Own):
        __tablename__ = "guests"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Booking(Versioned, Own):
        __tablename__ = "bookings"
        __version_ignore__ = ("views",)
        __merge_together__ = groups
        __on_conflict__ = resolver
        id: Mapped[int] = mapped_column(primary_key=True)
        start: Mapped[int]
        end: Mapped[int] = mapped_column("the_end")
        x: Mapped[int] = mapped_column()
        y: Mapped[int] = mapped_column()
        views: Mapped[int]
        nights: Mapped[int] = mapped_column(Generated("x + y"))
        place: Mapped[Span] = composite(Span, "x", "y")
        begin = synonym("start")
        spot = synonym("place")
        total = column_property(x + y)
        guest: Mapped[Guest] = relationship(
            primaryjoin="foreign(Booking.x) == Guest.id", viewonly=True
        )

    return Booking


@pytest.mark.parametrize(
    ("groups", "together"),
    [
        ((), ["x y"]),
        ([["begin", "end"]], ["end start", "x y"]),
        ((("start", "spot"),), ["start x y"]),
        (({"start", "end"}, ("end", "place")), ["end start x y"]),
    ],
)
def test_a_class_declares_columns_synonyms_and_composites(groups: Any, together: Any) -> None:
    made = booking(groups)
    made.registry.configure()
    found = facts(inspect(made)).together
    assert sorted(" ".join(sorted(group)) for group in found) == together


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ((("start", "ennd"),), r"'ennd', which is no attribute .* of Booking\. 'end' was probably"),
        ((("start", "the_end"),), r"'the_end', which is no attribute"),
        ((("start", "guest"),), r"'guest', which is no attribute of a column"),
        ((("start", "total"),), r"'total', which is no attribute of a column"),
        ((("start", "version"),), "'version', which is the version itself"),
        ((("start", "id"),), "'id', which is the primary key"),
        ((("start", "nights"),), "'nights', which is computed by the database"),
        ((("start", "views"),), "'views', which is in __version_ignore__"),
        *((value, r"is .*: write groups of two or more") for value in NO_GROUPS),
    ],
)
def test_a_declaration_that_no_merge_can_meet_is_refused(groups: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Booking\.__merge_together__.*{why}"):
        booking(groups)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="__merge_together__ was probably meant"):

        class Bad(booking(())):  # type: ignore[misc]
            __merged_together__ = (("start", "end"),)


def test_mixins_and_parents_add_groups_and_other_subclasses_have_none_of_them() -> None:
    class Own(DeclarativeBase):
        pass

    class Sized:
        __merge_together__ = (("width", "height"),)
        width: Mapped[int] = mapped_column(use_existing_column=True)
        height: Mapped[int] = mapped_column(use_existing_column=True)

    class Thing(Versioned, Own):
        __tablename__ = "things"
        __merge_together__ = (("a", "b"),)
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "thing"}
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        a: Mapped[int]
        b: Mapped[int]

    class Box(Sized, Thing):
        __merge_together__ = (("b", "c"),)
        __mapper_args__ = {"polymorphic_identity": "box"}
        c: Mapped[int | None]

    class Bag(Thing):
        __mapper_args__ = {"polymorphic_identity": "bag"}

    class Alone(Thing):
        __tablename__ = "alone"
        __mapper_args__ = {"concrete": True, "polymorphic_identity": "alone"}
        id: Mapped[int] = mapped_column(primary_key=True)
        a: Mapped[int]

    Own.registry.configure()
    groups = {cls: set(facts(inspect(cls)).together) for cls in (Thing, Box, Bag, Alone)}
    assert groups[Thing] == groups[Bag] == {frozenset("ab")}
    assert groups[Box] == {frozenset("abc"), frozenset({"width", "height"})}
    assert groups[Alone] == set()


def test_a_class_with_a_native_version_is_refused_once_sessions_are_watched() -> None:
    class Own(DeclarativeBase):
        pass

    class Bad(Own):
        __tablename__ = "bad"
        __merge_together__ = (("start", "ennd"),)
        id: Mapped[int] = mapped_column(primary_key=True)
        revision: Mapped[int] = mapped_column()
        start: Mapped[int]
        end: Mapped[int]
        __mapper_args__ = {"version_id_col": revision}

    watch(sessionmaker())
    with pytest.raises(ConfigurationError, match="'end' was probably meant"):
        Own.registry.configure()


def test_the_token_has_its_name_in_the_message_too() -> None:
    class Own(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match="'revision', which is the version itself"):

        class Bad(Versioned, Own):
            __tablename__ = "bad"
            __version_token__ = Counter(name="revision")
            __merge_together__ = (("a", "revision"),)
            id: Mapped[int] = mapped_column(primary_key=True)
            a: Mapped[int]


# -- the documentation -----------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
#: Pages about the library itself, or with a merge that is a mistake: they advise nobody to merge.
ABOUT = {"benchmarks.md", "design.md", "4-test-it.md"}
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted(ROOT.glob("docs/**/*.md"))
        if page.name not in ABOUT and page.parent.name not in ("decisions", "contributing")
    ),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_that_merges_columns_leads_to_what_that_can_break(page: Path) -> None:
    text = page.read_text()
    used = re.sub(r"import [^)]*?merge_fields.*|^from .*", "", text, flags=re.MULTILINE)
    assert "merge_fields" not in used or "#columns-that-belong-together" in text
