"""Resolvers decide by values alone, and what cannot work is refused before it is tried."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from optilock.errors import CannotMerge, Computed, ConfigurationError, Entry
from optilock.resolvers.merge import add_delta, merge_set, merge_text
from optilock.resolvers.resolution import Resolution, Resolver, check_resolution, choose_resolver
from optilock.resolvers.rules import (
    PerField,
    check_on_conflict,
    check_resolver,
    check_resolver_for,
    client_wins,
    merge_fields,
    per_field,
    reject,
    store_wins,
)


class Base(DeclarativeBase):
    pass


class Page(Base):
    __tablename__ = "pages"

    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]
    views: Mapped[int]
    kind: Mapped[str]


class Article(Page):
    summary: Mapped[str | None]


class Other(Base):
    __tablename__ = "others"

    id: Mapped[int] = mapped_column(primary_key=True)


ORIGINAL = {"id": 7, "body": "one two three", "views": 5, "version": 1}


def entry(
    ours: dict[str, Any] | None = None,
    theirs: dict[str, Any] | None = None,
    *,
    action: Any = "update",
    original: dict[str, Any] = ORIGINAL,
    conflicting: set[str] | None = None,
) -> Entry[Page]:
    """A conflict over page 7: what we changed, what they changed (``None``: they deleted it)."""
    ours = ours or {}
    stored = None if theirs is None else {**ORIGINAL, **theirs, "version": 2}
    if conflicting is None:
        conflicting = {k for k in ours if theirs and k in theirs and ours[k] != theirs[k]}
    return Entry(
        model=Page,
        identity=(7,),
        kind="deleted" if stored is None else "updated",
        action=action,
        original=original,
        current={**original, **ours},
        database=stored,
        changes=ours,
        conflicting=frozenset(conflicting),
        token="version",
    )


BOTH_UPDATED = entry({"views": 6}, {"body": "theirs"})
BOTH_CHANGED_IT = entry({"body": "ours"}, {"body": "theirs"})
THEY_DELETED = entry({"body": "ours"}, None)
WE_DELETE = entry({}, {"body": "theirs"}, action="delete")
BOTH_DELETED = entry({}, None, action="delete")
ONLY_READ = entry({}, {"body": "theirs"}, action="verify")

OVERWRITE, KEEP, REJECT = Resolution.overwrite(), Resolution.keep_database(), Resolution.reject()
MERGED = Resolution.write({})


# -- the table -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resolver", "decisions"),
    [
        (client_wins, [OVERWRITE, OVERWRITE, OVERWRITE, OVERWRITE, KEEP, REJECT]),
        (store_wins, [KEEP, KEEP, KEEP, KEEP, KEEP, REJECT]),
        (merge_fields, [MERGED, REJECT, REJECT, REJECT, KEEP, REJECT]),
        (per_field(views=add_delta), [MERGED, REJECT, REJECT, REJECT, KEEP, REJECT]),
        (per_field(), [MERGED, REJECT, REJECT, REJECT, KEEP, REJECT]),
        (reject, [REJECT, REJECT, REJECT, REJECT, REJECT, REJECT]),
    ],
)
def test_each_resolver_decides_as_the_table_says(
    resolver: Resolver, decisions: list[Resolution]
) -> None:
    entries = (
        BOTH_UPDATED,
        BOTH_CHANGED_IT,
        THEY_DELETED,
        WE_DELETE,
        BOTH_DELETED,
        ONLY_READ,
    )

    assert [resolver(each) for each in entries] == decisions


# -- per_field -------------------------------------------------------------------------------------


def test_a_policy_gets_the_three_values_and_gives_the_new_one() -> None:
    conflict = entry({"body": "ONE two three", "views": 6}, {"body": "one two THREE", "views": 8})

    resolution = per_field(body=merge_text, views=add_delta)(conflict)

    assert resolution == Resolution.write({"body": "ONE two THREE", "views": 9})


def test_two_equal_additions_are_both_counted() -> None:
    """Equal values are no conflict, and yet 5 + 1 + 1 is not 6."""
    conflict = entry({"views": 6}, {"views": 6})

    assert conflict.conflicting == frozenset()
    assert per_field(views=add_delta)(conflict) == Resolution.write({"views": 7})


def test_no_policy_is_asked_about_what_one_side_left_alone() -> None:
    def unwanted(original: Any, current: Any, database: Any) -> Any:
        raise AssertionError("only we changed it")

    conflict = entry({"body": "ours"}, {"views": 9})

    assert per_field(body=unwanted, views=unwanted)(conflict) == Resolution.write({})


def test_values_that_cannot_be_compared_go_to_the_policy() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    before, ours, theirs = Array(), Array(), Array()
    conflict = entry(
        {"body": ours}, {"body": theirs}, original={**ORIGINAL, "body": before}, conflicting=set()
    )

    resolution = per_field(body=lambda original, current, database: current)(conflict)

    assert resolution.values["body"] is ours


@pytest.mark.parametrize(
    ("conflict", "reason"),
    [
        (BOTH_CHANGED_IT, "both sides changed body"),
        (entry({"views": None}, {"views": 9}), "views: add_delta cannot merge NULL"),
        (
            entry(
                {"views": 6},
                {"views": 9},
                original={"id": 7, "body": "", "version": 1},
            ),
            "views: it was set without having been loaded",
        ),
        (entry({"views": Computed("views")}, {"views": 9}), "views: it was set to a SQL"),
        (THEY_DELETED, "one side deleted the row"),
        (WE_DELETE, "one side deleted the row"),
        (ONLY_READ, "a row that was to stay as it is has changed"),
    ],
)
def test_what_a_policy_cannot_settle_is_rejected_with_the_reason(
    conflict: Entry[Page], reason: str
) -> None:
    resolution = per_field(views=add_delta)(conflict)

    assert resolution == REJECT
    assert resolution.reason is not None
    assert resolution.reason.startswith(reason)


def test_a_policy_that_breaks_is_not_taken_for_a_refusal() -> None:
    def broken(original: Any, current: Any, database: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        per_field(body=broken)(BOTH_CHANGED_IT)


def test_functions_of_ones_own_and_built_in_ones_are_policies() -> None:
    def longest(original: str, current: str, database: str) -> str:
        if len(current) == len(database):
            raise CannotMerge("equally long")
        return max(current, database, key=len)

    conflict = entry({"body": "ours", "views": 6}, {"body": "theirs", "views": 9})

    assert per_field(body=longest, views=max)(conflict).values == {"body": "theirs", "views": 9}


def test_a_per_field_shows_and_keeps_its_policies() -> None:
    resolver = per_field(body=merge_text, tags=merge_set)

    assert repr(resolver) == "per_field(body=merge_text, tags=merge_set)"
    assert resolver.policies == {"body": merge_text, "tags": merge_set}
    with pytest.raises(TypeError):
        resolver.policies["body"] = merge_set  # type: ignore[index]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_per_field_goes_to_other_processes(copied: Callable[[Any], Any]) -> None:
    resolver = per_field(body=merge_text)

    twin = copied(resolver)

    assert twin == resolver
    assert hash(twin) == hash(resolver)
    assert isinstance(twin, PerField)


async def async_policy(original: Any, current: Any, database: Any) -> Any:
    return database


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("theirs", "cannot be called"),
        (None, "cannot be called"),
        (client_wins, "does not take original, current and database"),
        (lambda current, database: database, "does not take original, current and database"),
        (async_policy, "is async"),
    ],
)
def test_what_is_no_policy_is_refused_at_once(policy: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"per_field\(body=.*{problem}.*merge_text"):
        per_field(body=policy)


# -- Resolution ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolution", [OVERWRITE, KEEP, REJECT, Resolution.write({"tags": ["a"]})])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_resolution_is_a_value(resolution: Resolution, copied: Callable[[Any], Any]) -> None:
    twin = copied(resolution)

    assert twin == resolution
    assert hash(twin) == hash(resolution)


def test_a_resolution_does_not_change_with_the_mapping_it_was_made_from() -> None:
    values = {"body": "ours"}
    resolution = Resolution.write(values)
    values["body"] = "changed"

    assert resolution.values == {"body": "ours"}
    with pytest.raises(TypeError):
        resolution.values["body"] = "changed"  # type: ignore[index]
    with pytest.raises(AttributeError):
        resolution.decision = "reject"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Resolution("maybe"), "'maybe' is not a decision.*Resolution.write"),  # type: ignore[arg-type]
        (lambda: Resolution("reject", {"body": "x"}), "'reject' takes no values"),
        (lambda: Resolution.write("body"), "takes a mapping of attribute names.*not str"),  # type: ignore[arg-type]
        (lambda: Resolution.write({1: "x"}), "takes a mapping of attribute names"),  # type: ignore[dict-item]
    ],
)
def test_a_resolution_that_cannot_be_is_refused_when_it_is_made(
    build: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


# -- check_resolution ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resolution",
    [
        OVERWRITE,
        KEEP,
        REJECT,
        Resolution.write({"body": "both"}),
        Resolution.write({"body": "both", "views": 9}),
    ],
)
def test_a_decision_that_can_be_carried_out_is_passed_on(resolution: Resolution) -> None:
    assert check_resolution(resolution, BOTH_CHANGED_IT) is resolution


@pytest.mark.parametrize("answer", [None, True, "reject", {"body": "x"}, Resolution])
def test_an_answer_that_is_no_resolution_is_refused(answer: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Page returned .*A resolver returns Resolution"):
        check_resolution(answer, BOTH_CHANGED_IT)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"body": "x", "boddy": "y"}, "wrote boddy, which Page does not have. It has: body, id"),
        ({"body": "x", "version": 9}, "wrote 'version', which is the version.*leave it out"),
        ({"views": 9}, "without body, which both sides changed.*entry.conflicting"),
        ({}, "without body, which both sides changed.*Resolution.reject"),
        ({"body": Computed("views")}, "only be written to the attribute that it was set on"),
    ],
)
def test_values_that_cannot_be_written_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_resolution(Resolution.write(values), BOTH_CHANGED_IT)


def test_a_sql_expression_may_be_written_where_it_was_set() -> None:
    conflict = entry({"views": Computed("views")}, {"views": 9})
    resolution = Resolution.write({"views": conflict.current["views"]})

    assert check_resolution(resolution, conflict) is resolution


# -- check_resolver, check_on_conflict, choose -----------------------------------------------------


async def async_resolver(conflict: Entry[Any]) -> Resolution:
    return Resolution.reject()


class Resolvers:
    def method(self, conflict: Entry[Any]) -> Resolution:
        return Resolution.reject()


@pytest.mark.parametrize(
    "resolver",
    [
        client_wins,
        per_field(body=merge_text),
        async_resolver,
        Resolvers().method,
        lambda conflict: Resolution.reject(),
    ],
)
def test_any_callable_that_takes_an_entry_is_a_resolver(resolver: Any) -> None:
    assert check_resolver(resolver) is resolver


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "None is not a resolver: it cannot be called"),
        ("client_wins", "'client_wins' is not a resolver: it cannot be called"),
        (Resolution.reject(), "is not a resolver: it cannot be called"),
        (Resolution.reject, "Resolution.reject is not a resolver: it does not take one Entry"),
        (Page, "Page is not a resolver: it is a class"),
        (per_field, "per_field is not a resolver: it has to be called first"),
        (merge_text, "merge_text is not a resolver: it is a policy for one attribute"),
        (lambda: None, "is not a resolver: it does not take one Entry"),
    ],
)
def test_what_is_no_resolver_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{message}.*client_wins"):
        check_resolver(value)


def test_the_attributes_a_class_resolver_names_must_exist() -> None:
    resolver = per_field(body=merge_text)

    assert check_resolver_for(resolver, Page, {"id", "body"}) is resolver
    assert check_resolver_for(reject, Page, {"id", "body"}) is reject
    with pytest.raises(ConfigurationError, match=r"names boddy, which Page.*It has: body, id"):
        check_resolver_for(per_field(boddy=merge_text), Page, {"id", "body"})


@pytest.mark.parametrize(
    "on_conflict",
    [
        None,
        merge_fields,
        {},
        {Page: per_field(body=merge_text, summary=merge_text), Other: reject},
        {Base: reject},
    ],
)
def test_on_conflict_is_a_resolver_or_one_for_each_class(on_conflict: Any) -> None:
    assert check_on_conflict(on_conflict) == on_conflict


@pytest.mark.parametrize(
    ("on_conflict", "message"),
    [
        ("reject", "'reject' is not a resolver"),
        ([merge_fields], "is not a resolver"),
        ({"Page": merge_fields}, "'Page', which is not a class.*{Page: merge_fields"),
        ({Page: None}, "None is not a resolver"),
        ({Page: merge_text}, "it is a policy"),
        ({Page: per_field(boddy=merge_text)}, "names boddy, which Page does not have"),
    ],
)
def test_an_on_conflict_that_cannot_work_is_refused(on_conflict: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_on_conflict(on_conflict)


def test_the_nearest_class_has_the_resolver() -> None:
    on_conflict = {Base: reject, Page: merge_fields}

    assert choose_resolver(on_conflict, Article) is merge_fields
    assert choose_resolver(on_conflict, Other) is reject
    assert choose_resolver({Article: reject}, Page) is None
    assert choose_resolver(client_wins, Page) is client_wins
    assert choose_resolver(None, Page) is None


def test_a_mapping_that_changes_later_does_not_change_what_was_checked() -> None:
    mapping: dict[type[Any], Resolver] = {Page: reject}
    checked = check_on_conflict(mapping)
    mapping[Page] = client_wins

    assert choose_resolver(checked, Page) is reject
