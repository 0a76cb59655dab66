"""The compatibility matrix of share modes, whole: 64 first handles beside 64 second ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optilock import ConfigurationError
from optilock.shares.values import is_compatible, letters, mode

FILE = json.loads((Path(__file__).parents[1] / "vectors" / "file_share.json").read_text())


def test_the_rule_is_the_recorded_matrix() -> None:
    accesses, shares = FILE["meta"]["access_order"], FILE["meta"]["share_order"]
    assert len(FILE["matrix"]) == 64
    for first, allowed in FILE["matrix"].items():
        access, share = (mode(part.replace("none", ""), "it") for part in first.split("/"))
        found = "".join(
            str(int(is_compatible(access, share, mode(a, "it"), mode(s, "it"))))
            for a in accesses
            for s in shares
        )
        assert found == allowed, first


def test_the_order_of_two_handles_does_not_matter() -> None:
    for number in range(8**4):
        one, two, three, four = (number >> shift & 7 for shift in (0, 3, 6, 9))
        assert is_compatible(one, two, three, four) == is_compatible(three, four, one, two)


@pytest.mark.parametrize("text", ["", "R", "W", "D", "RW", "RD", "WD", "RWD"])
def test_a_mode_is_written_as_it_is_read(text: str) -> None:
    assert letters(mode(text, "access")) == text


@pytest.mark.parametrize("given", ["r", "RR", "RX", "none", None, 3, b"R", ["R"]])
def test_anything_else_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="access="):
        mode(given, "access")
