"""A conflict is told with its three values and the merged one."""

from __future__ import annotations

from typing import Any

from optilock_apps.demo.edits import WikiPage
from optilock_apps.demo.report import story_of

from optilock import Entry

BODY = "First.\n\nSecond.\n\nThird."
OURS = "First.\n[edit 2-7] Checked.\n\nSecond.\n\nThird."
THEIRS = "First.\n\nSecond.\n\nThird.\n[edit 3-9] An example would help here."


def side(body: str, views: int, version: int, *tags: str) -> dict[str, Any]:
    return {"name": "with", "body": body, "views": views, "version": version, "tags": list(tags)}


def conflict(theirs: str = THEIRS) -> Entry[WikiPage]:
    ours = side(OURS, 5, 5, "edit-1-1", "edit-2-7")
    return Entry(
        model=WikiPage,
        identity=("with",),
        kind="updated",
        action="update",
        original=side(BODY, 4, 5, "edit-1-1"),
        current=ours,
        database=side(theirs, 5, 6, "edit-1-1", "edit-3-9"),
        changes={name: ours[name] for name in ("body", "views", "tags")},
        conflicting=frozenset({"body", "tags"}),
        token="version",
    )


def test_the_story_says_who_read_which_version_and_who_was_first() -> None:
    story = story_of(conflict())
    assert story is not None
    reads, meanwhile, writes = story.before
    assert reads == "editor 2 reads page 'with': version 5, 4 views."
    assert meanwhile == "While editor 2 thinks, version 6 is stored by editor 3."
    assert "WHERE version = 5" in writes


def test_the_story_has_the_three_values_of_each_column_and_the_merged_one() -> None:
    story = story_of(conflict())
    assert story is not None
    views, tags, body = story.rows
    assert views == ("views", "4", "5", "5", "6")
    assert tags == ("tags", "1 tags", "+ edit-2-7", "+ edit-3-9", "+ edit-3-9\n+ edit-2-7")
    assert body[2] == "+ line 2: [edit 2-7] Checked."
    assert body[3] == "+ line 6: [edit 3-9] An example would help here."
    assert body[4] == f"{body[2]}\n+ line 7: [edit 3-9] An example would help here."
