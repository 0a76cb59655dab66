"""Field policies keep both changes, or say that they cannot."""

# The texts merged here are the reference topics that come with Python (``pydoc_data.topics``),
# Copyright the Python Software Foundation; they are read where they are installed, not copied.

from __future__ import annotations

import random
import re
import shutil
import subprocess
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optilock.errors import CannotMerge
from optilock.resolvers.diff3 import (
    Effort,
    TooMuchWork,
    chunks,
    normalize_line_ends,
    restore_line_ends,
)
from optilock.resolvers.merge import FieldPolicy, add_delta, merge_json, merge_set, merge_text
from optilock.resolvers.open_text import MARKS, lines_with_marks, merge_with_marks, places_in

# -- what is true of every policy ------------------------------------------------------------------

words = st.lists(st.sampled_from(["a", "b", "a b", "", "b c d"]), max_size=6).map("\n".join)
numbers = st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=3)
sets = st.lists(st.integers(0, 5), unique=True)
json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
POLICIES = [
    pytest.param(add_delta, numbers, id="add_delta"),
    pytest.param(merge_set, sets, id="merge_set"),
    pytest.param(merge_text, words, id="merge_text"),
    pytest.param(merge_json, json, id="merge_json"),
]


def outcome(policy: FieldPolicy, original: Any, current: Any, database: Any) -> Any:
    """The merged value, or the fact that there is none."""
    try:
        return policy(original, current, database)
    except CannotMerge:
        return CannotMerge


@pytest.mark.parametrize(("policy", "values"), POLICIES)
@given(data=st.data())
def test_where_one_side_is_unchanged_the_other_is_the_answer(
    policy: FieldPolicy, values: Any, data: Any
) -> None:
    original, changed = data.draw(values), data.draw(values)

    assert policy(original, changed, original) == changed
    assert policy(original, original, changed) == changed


@pytest.mark.parametrize(("policy", "values"), POLICIES[1:])
@given(data=st.data())
def test_the_same_change_on_both_sides_is_that_change(
    policy: FieldPolicy, values: Any, data: Any
) -> None:
    original, changed = data.draw(values), data.draw(values)

    assert policy(original, changed, changed) == changed


@pytest.mark.parametrize(("policy", "values"), POLICIES)
@given(data=st.data())
def test_it_does_not_matter_who_was_first(policy: FieldPolicy, values: Any, data: Any) -> None:
    original, one, other = data.draw(values), data.draw(values), data.draw(values)

    first, second = outcome(policy, original, one, other), outcome(policy, original, other, one)

    # Of a list used as a set, the order tells who was first; the elements are the same.
    assert first == second or (policy is merge_set and set(first) == set(second))


# -- add_delta -------------------------------------------------------------------------------------


def test_two_additions_of_one_are_an_addition_of_two() -> None:
    assert add_delta(5, 6, 6) == 7


@pytest.mark.parametrize(
    ("original", "current", "database", "merged"),
    [
        (100, 70, 150, 120),
        (2**70, 2**70 + 1, 2**70 + 2, 2**70 + 3),
        (Decimal("10.00"), Decimal("7.50"), Decimal("15.25"), Decimal("12.75")),
        (Decimal("10.00"), 7, Decimal("15.25"), Decimal("12.25")),
        (0.1, 0.3, 0.2, 0.4),
        (1.5, 2, 2.5, 3.0),
        (timedelta(hours=1), timedelta(hours=3), timedelta(hours=2), timedelta(hours=4)),
    ],
)
def test_numbers_of_every_kind_are_added(
    original: Any, current: Any, database: Any, merged: Any
) -> None:
    result = add_delta(original, current, database)

    assert result == merged
    assert type(result) is type(merged)


def test_a_decimal_keeps_more_digits_than_the_default_context_has() -> None:
    big = Decimal("1234567890123456789012345678901234567890.01")

    assert add_delta(Decimal(0), Decimal("0.01"), big) == Decimal(
        "1234567890123456789012345678901234567890.02"
    )
    assert add_delta(1, 10**30 + 2, Decimal(0)) == 10**30 + 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((None, 1, 2), "NULL"),
        ((1, None, 2), "NULL"),
        ((1, 2, None), "NULL"),
        ((1, True, 2), "bool"),
        (("1", "2", "3"), "str"),
        ((1.0, Decimal(2), 3.0), "different kinds"),
        ((1, timedelta(1), timedelta(2)), "different kinds"),
        ((1.0, float("inf"), 2.0), "infinity"),
        ((1.0, float("nan"), 2.0), "infinity or NaN"),
        ((Decimal(1), Decimal("NaN"), Decimal(2)), "infinity or NaN"),
        ((-1e308, 1e308, 1e308), "too large"),
        ((Decimal(0), Decimal("1E+5000"), Decimal("1E-5000")), "every digit"),
    ],
)
def test_what_cannot_be_added_is_refused(values: tuple[Any, Any, Any], reason: str) -> None:
    with pytest.raises(CannotMerge, match=reason):
        add_delta(*values)


# -- merge_set -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [set, frozenset, list, tuple])
def test_additions_and_removals_of_both_sides_are_kept_in_the_same_type(kind: Any) -> None:
    merged = merge_set(kind(["a", "b"]), kind(["b", "c"]), kind(["a", "b", "d"]))

    assert merged == kind(["b", "d", "c"])
    assert type(merged) is kind


def test_the_stored_order_stays_and_our_additions_follow_in_our_order() -> None:
    assert merge_set(["a", "b"], ["z", "a", "y", "b"], ["b", "a", "c"]) == [*"bac", "z", "y"]


def test_the_values_themselves_are_left_alone() -> None:
    original, current, database = ["a"], ["a", "b"], ["a", "c"]

    merge_set(original, current, database)

    assert (original, current, database) == (["a"], ["a", "b"], ["a", "c"])


def test_true_is_not_the_element_one() -> None:
    assert merge_set([1], [True], [1, 2]) == [2, True]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (("a,b", "a,b,c", "a"), "text is not a set"),
        ((None, ["a"], ["b"]), "merge_set cannot merge NULL"),
        (({"a": 1}, {"a": 2}, {"a": 3}), "dict"),
        ((["a", "a"], ["a"], ["b"]), "twice"),
        ((["a"], ["b"], ["a", "c", "c"]), "twice"),
        (([["a"]], [["b"]], [["c"]]), "hashed"),
    ],
)
def test_what_is_no_set_is_refused(values: tuple[Any, Any, Any], reason: str) -> None:
    with pytest.raises(CannotMerge, match=reason):
        merge_set(*values)


# -- merge_text ------------------------------------------------------------------------------------

#: Merges that text libraries are known to get wrong: they hang, mix both values, or drop one.
NAMED = [
    pytest.param("a\nb\n", "", "a\nb\nc\n", CannotMerge, id="emptied here, appended there"),
    pytest.param("a\nb\n", "", "a\nb\n", "", id="one side empties the text"),
    pytest.param("", "a\n", "b\n", CannotMerge, id="both begin an empty text"),
    pytest.param("", "a\n", "", "a\n", id="one side begins an empty text"),
    pytest.param("100", "1001", "2100", CannotMerge, id="numbers with common digits"),
    pytest.param("10.50", "11.50", "10.75", CannotMerge, id="price and cents are one word"),
    pytest.param("5", "6", "7", CannotMerge, id="two numbers"),
    pytest.param("v = 5\n", "v = 6\n", "v = 7\n", CannotMerge, id="two numbers in a line"),
    pytest.param(
        "<<<<<<< a\nx\n>>>>>>> b\nm\ny\n",
        "<<<<<<< a\nX\n>>>>>>> b\nm\ny\n",
        "<<<<<<< a\nx\n>>>>>>> b\nm\nY\n",
        "<<<<<<< a\nX\n>>>>>>> b\nm\nY\n",
        id="text that looks like a conflict",
    ),
    pytest.param("a\nb\nc\n", "a\nc\n", "a\nB\nc\n", CannotMerge, id="deleted here, changed there"),
    pytest.param("a\nb\nc\n", "b\nc\n", "a\nb\n", "b\n", id="both ends deleted"),
    pytest.param("a\nb\n", "a\nx\nb\n", "a\ny\nb\n", CannotMerge, id="two lines at one place"),
    pytest.param("a\n", "a\nx\n", "a\nx\n", "a\nx\n", id="the same line at one place"),
    pytest.param("a\nb", "x\na\nb", "a\nb\ny", "x\na\nb\ny", id="no newline at the end"),
    pytest.param(
        "a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", "A\r\nb\r\nC\r\n", id="CR LF"
    ),
    pytest.param(
        "a\x0cb\u2028c d e\n", "a\x0cb\u2028C d e\n", "a\x0cb\u2028c d E\n",
        "a\x0cb\u2028C d E\n", id="other line separators",
    ),
    pytest.param("is here", "is not here", "is gone", CannotMerge, id="negated, changed"),
    pytest.param("a b", "x b", "a y", CannotMerge, id="neighbouring words"),
    pytest.param("a b c", "x b c", "a b y", "x b y", id="a word between the edits"),
    pytest.param("a b c", "a b c d", "x b c", "x b c d", id="a word added at the end"),
]  # fmt: skip


@pytest.mark.parametrize(("original", "current", "database", "merged"), NAMED)
def test_the_merges_that_other_libraries_get_wrong_are_right(
    original: str, current: str, database: str, merged: Any
) -> None:
    assert outcome(merge_text, original, current, database) == merged
    assert outcome(merge_text, original, database, current) == merged


def test_the_refusal_names_the_line_and_not_the_text() -> None:
    with pytest.raises(CannotMerge) as refused:
        merge_text("a\nb\nsecret", "a\nb\nsecret1", "a\nb\nsecret2")

    assert str(refused.value) == "merge_text: both sides changed the text at line 3"


@pytest.mark.parametrize("values", [(None, "a", "b"), ("a", None, "b"), (b"a", b"b", b"c")])
def test_only_text_is_merged_as_text(values: tuple[Any, Any, Any]) -> None:
    with pytest.raises(CannotMerge, match=r"merge_text cannot merge (NULL|a value of type bytes)$"):
        merge_text(*values)


def every_second_line(count: int, word: str) -> str:
    return "".join(f"{word}{number}\n\n" for number in range(count))


@pytest.mark.parametrize("count", [600, 6_000])
def test_texts_that_take_too_long_are_refused_soon(count: int) -> None:
    """difflib alone takes cubic time: 7 seconds for 600 rewritten paragraphs, hours for 6,000."""
    with pytest.raises(CannotMerge, match="too long and too repetitive"):
        merge_text(*(every_second_line(count, word) for word in ("o", "c", "d")))


def test_a_long_text_with_small_edits_is_merged() -> None:
    lines = [f"{number % 7}\n" for number in range(50_000)]
    ours, theirs = lines.copy(), lines.copy()
    ours[5], theirs[49_995] = "ours\n", "theirs\n"

    merged = merge_text("".join(lines), "".join(ours), "".join(theirs))

    assert merged.splitlines()[5] == "ours"
    assert merged.splitlines()[49_995] == "theirs"


# -- git as the oracle -----------------------------------------------------------------------------

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git_merge(folder: Path, original: str, current: str, database: str) -> Any:
    """What ``git merge-file`` makes of the three texts."""
    names = ("current", "original", "database")
    for name, text in zip(names, (current, original, database), strict=True):
        (folder / name).write_bytes(text.encode())
    command = ["git", "merge-file", "-p", *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return done.stdout.decode() if done.returncode == 0 else CannotMerge


def edits(distance: int) -> list[tuple[str, str, str]]:
    """Thirty topics, each edited at two lines that are ``distance`` apart."""
    chance = random.Random(distance)
    long = sorted(name for name, text in topics.items() if len(text.splitlines()) > 20)
    cases = []
    for name in chance.sample(long, 30):
        lines = topics[name].splitlines(keepends=True)
        here = chance.choice([i for i in range(len(lines) - distance) if lines[i].strip()])
        cases.append(
            (topics[name], edited(lines, here, "OURS"), edited(lines, here + distance, "THEIRS"))
        )
    return cases  # fmt: skip


def edited(lines: list[str], index: int, mark: str) -> str:
    """The text with a word of one line replaced: the first by us, the last by them."""
    words = lines[index].split() or [""]
    words[0 if mark == "OURS" else -1] = mark
    return "".join([*lines[:index], " ".join(words) + "\n", *lines[index + 1 :]])


@needs_git
def test_lines_that_are_far_apart_are_merged_as_git_does(tmp_path: Path) -> None:
    for case in edits(distance=5):
        merged = merge_text(*case)

        assert merged == git_merge(tmp_path, *case)
        assert "OURS" in merged
        assert "THEIRS" in merged


@needs_git
@pytest.mark.parametrize("distance", [0, 1])
def test_where_git_refuses_words_are_merged_and_no_mark_is_lost(
    tmp_path: Path, distance: int
) -> None:
    results = []
    for case in edits(distance):
        expected = git_merge(tmp_path, *case)
        merged = outcome(merge_text, *case)
        results.append((expected, merged))
        if expected is not CannotMerge:
            assert merged == expected
        if merged is not CannotMerge:
            assert "OURS" in merged
            assert "THEIRS" in merged

    assert any(git is CannotMerge and ours is not CannotMerge for git, ours in results)


@needs_git
def test_whole_topics_rewritten_by_chance_are_merged_as_git_does(tmp_path: Path) -> None:
    """Every third paragraph is dropped, doubled or changed by either side."""
    chance = random.Random(3)
    for name in chance.sample(sorted(topics), 30):
        paragraphs = topics[name].split("\n\n")
        sides: list[list[str]] = [[], []]
        for number, paragraph in enumerate(paragraphs):
            for side in (0, 1):
                change = chance.choice(["keep", "drop", "change", "add"])
                sides[side] += rewritten(
                    paragraph, change if number % 6 == side * 3 else "keep", side
                )
        texts = (topics[name], "\n\n".join(sides[0]), "\n\n".join(sides[1]))

        assert outcome(merge_text, *texts) == git_merge(tmp_path, *texts)


def rewritten(paragraph: str, change: str, side: int) -> list[str]:
    return {
        "keep": [paragraph],
        "drop": [],
        "change": [f"side {side} rewrote this"],
        "add": [paragraph, f"side {side} added this"],
    }[change]


# -- the walk under it -----------------------------------------------------------------------------

texts = st.text("abc", max_size=12)


@given(texts, texts, texts)
def test_the_chunks_together_are_the_three_texts(
    original: str, current: str, database: str
) -> None:
    walked = list(chunks(original, current, database, Effort(100_000)))

    assert "".join(str(chunk.original) for chunk in walked) == original
    assert "".join(str(chunk.current) for chunk in walked) == current
    assert "".join(str(chunk.database) for chunk in walked) == database
    assert all(chunk.original or chunk.current or chunk.database for chunk in walked)


def test_an_effort_that_is_used_up_ends_the_walk() -> None:
    with pytest.raises(TooMuchWork):
        list(chunks("abc", "xbz", "abc", Effort(1)))


# -- merge_json ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("original", "current", "database", "merged"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 1, "b": 1}, {"a": 2, "b": 1}, id="two members"),
        pytest.param({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2}, id="removed, changed"),
        pytest.param({"a": 1}, {}, {}, {}, id="both removed it"),
        pytest.param({}, {"a": 1}, {"a": 1}, {"a": 1}, id="both added the same"),
        pytest.param({"a": {"b": 1, "c": 1}}, {"a": {"b": 2, "c": 1}}, {"a": {"b": 1, "c": 2}},
                     {"a": {"b": 2, "c": 2}}, id="deep"),
        pytest.param({"a": 1}, {"a": None}, {"a": 1, "b": 1}, {"a": None, "b": 1}, id="null"),
        pytest.param({0: 1}, {0: 1, 1: 1}, {0: 2}, {0: 2, 1: 1}, id="members that are no strings"),
        pytest.param([1], [1, 2], [1], [1, 2], id="an array of one side"),
        pytest.param({"a": float("nan")}, {"a": float("nan"), "b": 1}, {"a": float("nan"), "c": 1},
                     {"a": pytest.approx(float("nan"), nan_ok=True), "c": 1, "b": 1}, id="NaN"),
    ],
)  # fmt: skip
def test_members_are_merged_one_by_one(
    original: Any, current: Any, database: Any, merged: Any
) -> None:
    assert merge_json(original, current, database) == merged


@pytest.mark.parametrize(
    ("original", "current", "database", "path"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 3}, "/a", id="two values"),
        pytest.param({"a": 1}, {}, {"a": 3}, "/a", id="removed here, changed there"),
        pytest.param({}, {"a": 1}, {"a": 2}, "/a", id="added twice"),
        pytest.param({}, {"a": None}, {"a": 0}, "/a", id="null is not zero"),
        pytest.param({"a": 0}, {"a": 1}, {"a": True}, "/a", id="1 is not true"),
        pytest.param({"a": 0}, {"a": 1}, {"a": 1.0}, "/a", id="1 is not 1.0"),
        pytest.param({"a": {"b": [1]}}, {"a": {"b": [2]}}, {"a": {"b": [3]}}, "/a/b", id="arrays"),
        pytest.param([1, 2], [1], [1, 2, 3], "the whole value", id="array of another length"),
        pytest.param({"a": {"b": 1}}, {"a": [1]}, {"a": {"b": 2}}, "/a", id="object or array"),
        pytest.param({"a/b": {"~": 1}}, {"a/b": {"~": 2}}, {"a/b": {"~": 3}}, "/a~1b/~0", id="~"),
        pytest.param(None, {"a": 1}, {"b": 1}, "the whole value", id="from null"),
    ],
)  # fmt: skip
def test_what_both_changed_is_refused_with_its_place(
    original: Any, current: Any, database: Any, path: str
) -> None:
    with pytest.raises(CannotMerge) as refused:
        merge_json(original, current, database)

    assert str(refused.value) == f"merge_json: both sides changed {path}"


def test_true_for_one_is_a_change() -> None:
    assert merge_json({"a": 1, "b": 1}, {"a": True, "b": 1}, {"a": 1, "b": 2}) == {
        "a": True,
        "b": 2,
    }


def test_the_stored_order_of_members_stays_and_ours_follow() -> None:
    merged = merge_json({"b": 1}, {"z": 1, "b": 1}, {"c": 1, "b": 1})

    assert list(merged) == ["c", "b", "z"]


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    def nested(leaf: int) -> Any:
        value: Any = leaf
        for _ in range(5_000):
            value = {"a": value}
        return value

    with pytest.raises(CannotMerge, match="too deeply"):
        merge_json(nested(1), nested(2), nested(3))


# -- the ends of lines -----------------------------------------------------------------------------

lines = st.lists(st.sampled_from("abc"), max_size=6)
ends = st.sampled_from(["\n", "\r\n", "\r"])


@given(st.tuples(lines, lines, lines), st.tuples(ends, ends, ends))
def test_the_ends_of_lines_change_no_merge(sides: Any, styles: Any) -> None:
    """A6: a browser sends CR and LF, whatever it was shown; what is stored keeps its own."""
    texts = ["\n".join(side) for side in sides]
    merged = outcome(merge_text, *texts)
    ended = [end.join(side) for side, end in zip(sides, styles, strict=True)]
    found = outcome(merge_text, *ended)
    assert (found is CannotMerge) is (merged is CannotMerge)
    if isinstance(found, str):
        assert normalize_line_ends(found) == merged
        if len(sides[2]) > 1:
            assert {*re.findall("\r\n|\r|\n", found)} <= {styles[2]}


def test_a_text_with_several_kinds_of_line_ends_keeps_each_of_them() -> None:
    """A6: also where one line in the middle was changed in a browser."""
    stored = "one\r\ntwo\nthree\rfour"
    assert restore_line_ends("one\r\nTWO\r\nthree\r\nfour", stored) == "one\r\nTWO\r\nthree\rfour"
    assert restore_line_ends("one\r\ntwo\r\nthree\r\nfour", stored) == stored
    assert restore_line_ends("one\r\ntwo", "one") == "one\ntwo"
    assert restore_line_ends("one\ntwo", "one", "a\r\nb") == "one\r\ntwo"
    theirs = "ONE\ntwo\nthree\n"
    assert merge_text("one\ntwo\nthree\n", "one\r\ntwo\r\n3\r\n", theirs) == "ONE\ntwo\n3\n"


# -- a text with open places -----------------------------------------------------------------------


@given(st.tuples(lines, lines, lines), st.booleans())
def test_an_open_text_drops_nothing_that_anybody_has_written(sides: Any, based: bool) -> None:
    """A5: each line of either side that is no line of the other ones is there, marks aside."""
    base, ours, theirs = ([f"{line}{n % 2}\n" for n, line in enumerate(side)] for side in sides)
    before = "".join(base) if based else None
    merged = merge_with_marks(before, "".join(ours), "".join(theirs))
    known = {*base} if based else set()
    assert ({*ours} | {*theirs}) - known <= {*merged.splitlines(keepends=True)}
    places = places_in(merged)
    assert len(lines_with_marks(merged)) == 3 * len(places)
    if not based and ours != theirs:
        assert places
    if before is not None and "".join(ours) == before:
        assert merged == "".join(theirs)


@given(st.tuples(lines, lines))
def test_without_a_base_either_side_can_be_had_back(sides: Any) -> None:
    """A5: what stands between the marks, with what both have, is the whole of each side."""
    ours, theirs = ("".join(f"{line}\n" for line in side) for side in sides)
    merged = merge_with_marks(None, ours, theirs)
    for number, side in enumerate((ours, theirs)):
        kept, inside = [], None
        for line in merged.splitlines(keepends=True):
            mark = next((n for n, one in enumerate(MARKS) if line.startswith(one)), None)
            if mark is not None:
                inside = None if mark == 2 else mark
            elif inside in (None, number):
                kept.append(line)
        assert "".join(kept) == side
