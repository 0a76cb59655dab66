"""An entry is a value: it can be kept, sent, compared and applied, and it is not changed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from optilock.errors import Computed, ConfigurationError, Entry


@dataclass
class Page:
    body: str = ""
    tags: Any = None
    views: int = 0
    version: int = 1


def page_entry(**different: Any) -> Entry[Page]:
    values: dict[str, Any] = {
        "model": Page,
        "identity": (7,),
        "kind": "updated",
        "action": "update",
        "original": {"body": "secret", "tags": ["a"], "views": 5, "version": 1},
        "current": {"body": "ours", "tags": ["a", "b"], "views": 5, "version": 1},
        "database": {"body": "theirs", "tags": ["a"], "views": 9, "version": 2},
        "changes": {"body": "ours", "tags": ["a", "b"]},
        "conflicting": frozenset({"body"}),
        "token": "version",
    }
    return Entry(**{**values, **different})


copies = pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda entry: pickle.loads(pickle.dumps(entry))]
)


@copies
def test_a_copy_is_equal_and_hashes_alike(copied: Callable[[Any], Any]) -> None:
    entry = page_entry()

    twin = copied(entry)

    assert twin == entry
    assert hash(twin) == hash(entry)
    assert twin.describe() == entry.describe()


@copies
def test_a_row_that_is_gone_and_a_sql_expression_are_copied_too(
    copied: Callable[[Any], Any],
) -> None:
    entry = page_entry(database=None, kind="deleted", changes={"views": Computed("views")})

    assert copied(entry) == entry


def test_a_deep_copy_does_not_share_mutable_values() -> None:
    entry = page_entry()

    copy.deepcopy(entry).current["tags"].append("c")

    assert entry.current["tags"] == ["a", "b"]


@pytest.mark.parametrize("side", ["original", "current", "database", "changes"])
def test_the_mappings_are_read_only(side: str) -> None:
    entry = page_entry()

    with pytest.raises(TypeError):
        getattr(entry, side)["body"] = "x"
    with pytest.raises(FrozenInstanceError):
        setattr(entry, side, {})


def test_an_entry_does_not_change_with_the_mapping_it_was_made_from() -> None:
    original = {"body": "a"}
    entry = page_entry(original=original)
    original["body"] = "b"

    assert entry.original == {"body": "a"}


def test_entries_of_one_row_with_other_values_are_different() -> None:
    entry, other = page_entry(), page_entry(identity=(8,))

    assert entry != other
    assert entry != page_entry(changes={})
    assert len({entry, other, page_entry(), page_entry(changes={})}) == 3


def test_conflicting_is_a_frozenset_whatever_it_was_made_from() -> None:
    assert page_entry(conflicting=["body", "body"]).conflicting == frozenset({"body"})


def test_our_changes_and_nothing_else_are_set_on_a_fresh_object() -> None:
    fresh = Page(body="theirs", tags=["a"], views=9, version=2)

    applied = page_entry().apply_to(fresh)

    assert applied is fresh
    assert fresh == Page(body="ours", tags=["a", "b"], views=9, version=2)


def test_a_sql_expression_cannot_be_applied_and_nothing_is_set() -> None:
    entry = page_entry(changes={"body": "ours", "views": Computed("views")})
    fresh = Page()

    with pytest.raises(ConfigurationError, match=r"Page\.views was set to a SQL expression"):
        entry.apply_to(fresh)
    assert fresh == Page()


def test_what_is_applied_is_not_shared_with_the_entry() -> None:
    entry = page_entry()

    entry.apply_to(Page()).tags.append("c")

    assert entry.changes["tags"] == ["a", "b"]


def test_a_computed_value_says_what_it_is() -> None:
    assert repr(Computed("views")) == "<computed by the database: views>"


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            page_entry(),
            "Page 7: we tried to update it, it was updated; both sides changed body"
            " (we read version 1, stored is 2)",
        ),
        (
            page_entry(conflicting=frozenset()),
            "Page 7: we tried to update it, it was updated; we changed body, tags"
            " (we read version 1, stored is 2)",
        ),
        (
            page_entry(kind="deleted", database=None, conflicting=frozenset()),
            "Page 7: we tried to update it, it was deleted; we changed body, tags"
            " (we read version 1)",
        ),
        (
            page_entry(action="delete", changes={}, conflicting=frozenset(), identity=(7, "en")),
            "Page (7, 'en'): we tried to delete it, it was updated"
            " (we read version 1, stored is 2)",
        ),
        (
            page_entry(token=None, conflicting=frozenset(), changes={}),
            "Page 7: we tried to update it, it was updated",
        ),
    ],
)
def test_one_line_tells_the_row_the_columns_and_the_versions(entry: Entry[Page], line: str) -> None:
    assert entry.describe() == line


def test_the_line_shows_no_column_value() -> None:
    line = page_entry().describe()

    assert not any(value in line for value in ("secret", "ours", "theirs", "'a'", "9"))
