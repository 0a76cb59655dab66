"""Marks say which words of a text were deleted, and which were inserted."""

from __future__ import annotations

import random
from itertools import pairwise
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optilock_apps.wiki.conflict import Mark, fold_equal, marks

texts = st.text("ab .\n<", max_size=40) | st.text(max_size=20)


def old(found: list[Mark]) -> str:
    return "".join(mark.text for mark in found if mark.kind != "inserted")


def new(found: list[Mark]) -> str:
    return "".join(mark.text for mark in found if mark.kind != "deleted")


@given(texts, texts)
def test_what_is_not_inserted_is_the_old_text_and_what_is_not_deleted_the_new_one(
    before: str, after: str
) -> None:
    found = marks(before, after)
    assert (old(found), new(found)) == (before, after)
    assert all(mark.text for mark in found)
    assert all(one.kind != other.kind for one, other in pairwise(found))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("a cat sat", "a dog sat", "a [-cat-]{+dog+} sat"),
        ("a cat", "a cat sat", "a cat{+ sat+}"),
        ("one\ntwo\n", "one\nzwei\n", "one\n[-two-]{+zwei+}\n"),
        ("one\n", "one\ntwo\n", "one\n{+two\n+}"),
        ("", "new", "{+new+}"),
        ("old", "", "[-old-]"),
        ("same", "same", "same"),
        ("The end.", "The end!", "The end[-.-]{+!+}"),
    ],
)
def test_words_are_marked_and_no_more_than_words(before: str, after: str, shown: str) -> None:
    around = {"equal": "%s", "deleted": "[-%s-]", "inserted": "{+%s+}"}
    assert "".join(around[mark.kind] % mark.text for mark in marks(before, after)) == shown


def test_an_edit_of_a_long_page_is_marked_where_it_is() -> None:
    before = topics["types"] if "types" in topics else max(topics.values(), key=len)
    after = before.replace("\n\n", "\n\nInserted.\n\n", 3)
    inserted = [mark.text for mark in marks(before, after) if mark.kind != "equal"]
    assert "".join(inserted).count("Inserted.") == 3
    assert sum(map(len, inserted)) < 60


@pytest.mark.parametrize("end", [" ", "\n"])
def test_long_and_repetitive_texts_are_marked_whole_before_anybody_waits(end: str) -> None:
    chance = random.Random(7)
    before, after = (end.join(chance.choices("abc", k=20_000)) for _ in range(2))
    found = marks(before, after)
    assert len(found) <= 4  # of which two may be what both begin and end with
    assert (old(found), new(found)) == (before, after)


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [(False, False, (3, 4, 3)), (True, False, (0, 7, 3)), (False, True, (3, 7, 0))],
)
def test_only_the_lines_around_a_change_are_shown(
    first: bool, last: bool, shown: tuple[int, int, int]
) -> None:
    text = "".join(f"{number}\n" for number in range(10))
    found = fold_equal(text, first=first, last=last)
    assert "".join(found) == text
    assert tuple(part.count("\n") for part in found) == shown
    assert fold_equal("a\nb\n", first=first, last=last) == ("a\nb\n", "", "")
