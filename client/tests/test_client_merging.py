"""The merge, by vectors that the browser module shares; and the body of a PATCH."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from optilock_client import ABSENT, Conflict, merge
from optilock_client.merging import is_same, patch_of

VECTORS = json.loads((Path(__file__).parent / "merge_vectors.json").read_text("utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_merge_keeps_what_each_side_has_changed(vector: dict[str, Any]) -> None:
    sides = [vector[side] for side in ("base", "mine", "theirs")]
    before = copy.deepcopy(sides)
    merged, conflicts = merge(*sides)
    assert [list(one.path) for one in conflicts] == vector.get("conflicts", [])
    if "merged" in vector:
        assert is_same(merged, vector["merged"])
    base, mine, theirs = sides
    assert is_same(merge(base, theirs, mine)[0], merged) == (not conflicts)  # either may be first
    assert sides == before


def test_settle_decides_each_conflict_and_may_remove_a_member() -> None:
    seen: list[Conflict] = []

    def settle(conflict: Conflict) -> Any:
        seen.append(conflict)
        return {"n": 6, "o": ABSENT}[conflict.path[0]]

    base, mine, theirs = {"n": 1, "o": {"x": 1}}, {"n": 3, "o": {"x": 2}}, {"n": 4}
    assert merge(base, mine, theirs, settle) == ({"n": 6}, ())
    assert seen == [Conflict(("n",), 1, 3, 4), Conflict(("o",), {"x": 1}, {"x": 2}, ABSENT)]


@pytest.mark.parametrize(
    ("stored", "wanted", "patch"),
    [
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2}),
        ({"a": 1, "b": 1}, {"b": 1, "c": [1]}, {"a": None, "c": [1]}),
        ({"o": {"x": 1, "y": 1}}, {"o": {"x": 2, "y": 1}}, {"o": {"x": 2, "y": 1}}),
        ({"o": {"x": None}, "a": 1}, {"o": {"x": None}, "a": 2}, {"a": 2}),
        ({"o": {"x": 1, "y": 1}}, {"o": {"x": 1}}, None),  # one kind of server would keep y
        ({"o": {"x": 1}}, {"o": {"x": None}}, None),  # another one would remove x
        ([1], [2], None),
    ],
)
def test_a_patch_means_the_same_to_all_servers_or_is_none(
    stored: Any, wanted: Any, patch: Any
) -> None:
    assert patch_of(stored, wanted) == patch
