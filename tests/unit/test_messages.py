"""Messages say what happened to the row, which part of it moved, and what there is to name."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from optilock import UnitOfWork, Versioned, merge_fields, unit_of_work
from optilock.errors import ConcurrencyError, ConfigurationError, Entry, PreconditionFailed
from optilock.queue import Queue
from optilock.resolvers import merge_text, per_field
from tests.support.lost_update import base

SESSIONS = sessionmaker(create_engine("sqlite://"))


def entry(**different: Any) -> Entry[Any]:
    values: dict[str, Any] = {
        "model": type("Page", (), {}),
        "identity": (7,),
        "kind": "updated",
        "action": "update",
        "original": {"id": 7, "title": "a", "version": 3},
        "current": {},
        "database": {"id": 7, "title": "a", "version": 5},
        "changes": {},
        "token": "version",
    }
    return Entry(**{**values, **different})


def gone(**different: Any) -> Entry[Any]:
    return entry(kind="deleted", database=None, **different)


# -- which row, which part of it -------------------------------------------------------------------


def test_of_a_version_and_compared_values_the_line_says_which_one_moved() -> None:
    stored = {"id": 7, "title": "b", "version": 3}

    line = entry(database=stored, compared={"title"}).describe()
    both = entry(compared={"title"}).describe()

    assert line.endswith("(the version is still 3; stored with another value than we read: title)")
    assert both.endswith(
        "(we read version 3, stored is 5; stored with another value than we read: title)"
    )


def test_a_row_that_was_read_was_deleted() -> None:
    assert "it was deleted" in gone().describe()


@pytest.mark.parametrize("original", [{"version": 3}, {"id": 7, "version": 3}])
def test_of_a_row_that_nobody_has_read_nobody_says_that_it_was_there(original: Any) -> None:
    assert "it was deleted, or there never was such a row" in gone(original=original).describe()


# -- what can be done ------------------------------------------------------------------------------


def test_a_row_that_is_gone_is_not_to_be_refreshed() -> None:
    message = str(ConcurrencyError([gone()]))

    assert "Refresh the objects" not in message
    assert "merge_fields" not in message
    assert "on_conflict=client_wins, which inserts the row again" in message


def test_a_delete_of_a_row_that_is_gone_has_its_own_option() -> None:
    assert "OnDelete.IGNORE_GONE" in str(ConcurrencyError([gone(action="delete")]))


def test_rows_that_are_there_and_rows_that_are_gone_get_both_pieces_of_advice() -> None:
    message = str(ConcurrencyError([entry(), gone(), gone()]))

    assert message.count("Refresh the objects") == 1
    assert message.count("cannot be refreshed") == 1


def test_who_demanded_a_row_that_is_gone_is_not_told_to_read_it() -> None:
    message = str(PreconditionFailed([gone()]))

    assert "Read the row again" not in message
    assert "(404)" in message


@pytest.mark.parametrize(
    ("different", "advice"),
    [
        ({"action": "verify"}, "Roll back, read the rows again and decide again"),
        ({"demanded": True}, "send the version that you see then"),
    ],
)
def test_a_row_that_no_resolver_settles_gets_no_advice_to_set_one(
    different: Any, advice: str
) -> None:
    message = str(ConcurrencyError([entry(**different)]))

    assert advice in message
    assert "on_conflict" not in message
    assert "Refresh the objects" not in message


# -- names that exist ------------------------------------------------------------------------------


def test_a_resolver_for_fields_is_told_the_columns_of_its_class() -> None:
    class Base(DeclarativeBase):
        type_annotation_map = {str: String(40)}

    class Page(Versioned, Base):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind"}

    class Article(Page):
        __mapper_args__ = {"polymorphic_identity": "article"}
        body: Mapped[str | None]

    with pytest.raises(ConfigurationError, match=r"titel.*It has: body, id, kind\.$"):
        UnitOfWork(SESSIONS, on_conflict={Page: per_field(titel=merge_text)})
    UnitOfWork(SESSIONS, on_conflict={Page: per_field(body=merge_text)})


@pytest.mark.parametrize("name", ["__onconflict__", "__on_conflicts__", "__ondelete__"])
@pytest.mark.parametrize("inherited", [False, True])
def test_an_option_that_is_not_spelt_right_is_told_what_there_is(
    name: str, inherited: bool
) -> None:
    option = {name: merge_fields}
    above = (type("Mixin", (), option),) if inherited else ()
    body: dict[str, Any] = {
        "__tablename__": "docs",
        "__annotations__": {"id": Mapped[int]},
        "id": mapped_column(primary_key=True),
        **({} if inherited else option),
    }

    with pytest.raises(ConfigurationError, match=r"probably meant.*There are: .*__on_delete__"):
        type("Doc", (*above, Versioned, base()), body)


def test_the_decorator_names_the_options_of_both() -> None:
    options: Any = {"retries": 3}

    with pytest.raises(ConfigurationError, match=r"'retries'; it has attempts, .*on_conflict"):
        unit_of_work(SESSIONS, **options)


def test_a_unit_says_who_takes_the_options_of_a_retry() -> None:
    options: Any = {"attempts": 3}

    with pytest.raises(ConfigurationError, match=r"\(attempts\): decorate.*@optilock\.retry"):
        UnitOfWork(SESSIONS, **options).__enter__()


# -- what really happened --------------------------------------------------------------------------


def test_what_only_we_are_known_to_have_changed_was_not_changed_by_both_sides() -> None:
    """C11: without what the client has seen nobody knows whether the other side changed it."""
    unseen = {"id": 7, "version": 3}
    one = entry(changes={"title": "b"}, conflicting={"title"}, original=unseen)
    assert "both sides" not in one.describe()
    assert "we changed title, whose earlier value is unknown" in one.describe()

    stored = {"id": 7, "title": "c", "version": 5}
    both = entry(changes={"title": "b"}, conflicting={"title"}, database=stored)
    assert "; both sides changed title (" in both.describe()


def test_of_columns_that_belong_together_each_side_is_told_its_own() -> None:
    """C11: both have changed the group, and neither of them the same column."""
    read = {"id": 7, "start": 1, "end": 9, "version": 3}
    one = entry(
        original=read,
        changes={"start": 2},
        conflicting={"start", "end"},
        database={**read, "end": 8, "version": 5},
    )
    told = "we changed start; the other side changed end, which belongs together with it"
    assert told in one.describe()
    assert "both sides" not in one.describe()


def test_a_version_that_was_demanded_was_not_read() -> None:
    """C11: and a row in another version was not updated by anybody, as far as that is known."""
    one = entry(original={"version": 99}, demanded=True)
    assert one.describe().endswith(
        "we tried to update it, it is in another version (version 99 was demanded, stored is 5)"
    )
    assert (
        gone(original={"version": 99}, demanded=True)
        .describe()
        .endswith("(version 99 was demanded)")
    )


# -- of a queue ------------------------------------------------------------------------------------


def test_a_queue_names_no_option_that_nobody_gave() -> None:
    """C11: the name of its dead letters comes from its own, and a ttl from the queue."""
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match=r"^The name of the queue has 198 characters"):
        Queue(engine, "x" * 198)
    with pytest.raises(ConfigurationError, match=r"^dead_letters takes a text"):
        Queue(engine, "x", dead_letters="x" * 201)
    with pytest.raises(ConfigurationError, match=r"until the queue's ttl, 5 seconds, has ended"):
        Queue(engine, "x", ttl=5).send("a", delay=10)
    with pytest.raises(ConfigurationError, match=r"until its ttl, 7 seconds, has ended"):
        Queue(engine, "x", ttl=50).send("a", delay=10, ttl=7)
