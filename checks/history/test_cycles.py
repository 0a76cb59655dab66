"""The checker, by histories that are written by hand: it finds each anomaly, and no other.

Operations in the shorthand of Elle's tests: ``ax1`` appends 1 to x, ``rx12`` reads 1 and 2.
"""

from __future__ import annotations

import re

import pytest

from checks.history.cycles import Append, Read, Transaction, check

KEYS = {"x": 1, "y": 2, "z": 3}
LAST = {"x": "", "y": "", "z": ""}


def operations(text: str) -> tuple[Append | Read, ...]:
    found: list[Append | Read] = []
    for kind, key, digits in re.findall(r"([ar])([xyz])(\d*)", text):
        values = tuple(map(int, digits))
        one = Append(KEYS[key], *values) if kind == "a" else Read(KEYS[key], values)
        found.append(one)
    return tuple(found)


def words(last: dict[str, str], *texts: str) -> set[str]:
    """``?`` marks a transaction whose outcome is unknown, ``!`` one that has failed."""
    history = [
        Transaction(operations(text), {"?": "info", "!": "fail"}.get(text[0], "ok"))
        for text in texts
    ]
    lists = {KEYS[key]: tuple(map(int, digits)) for key, digits in (LAST | last).items()}
    return {one.word for one in check(history, lists)}


@pytest.mark.parametrize(
    ("last", "texts", "found"),
    [
        ({"x": "12"}, ["ax1", "rx1 ax2", "rx12"], set()),
        ({"x": "12", "y": "1"}, ["ax1 ay1", "rx1 ry1", "rx1 ax2 ry1"], set()),
        ({"x": "12", "y": "21"}, ["ax1 ay1", "ax2 ay2"], {"G0"}),
        ({"x": "1", "y": "1"}, ["ax1 ry1", "ay1 rx1"], {"G1c"}),
        ({"x": "12", "y": "1"}, ["ax1 ry1", "ax2 ay1"], {"G1c"}),
        ({"x": "1", "y": "1"}, ["ax1 ay1", "rx ry1"], {"G-single"}),
        ({"x": "1", "y": "1"}, ["rx ay1", "ry ax1"], {"G2"}),
        ({"x": "1", "y": "1", "z": "1"}, ["rx ay1", "ry az1", "rz ax1"], {"G2"}),
        ({"x": "2"}, ["rx ax1", "rx ax2"], {"lost"}),
        ({"x": "1"}, ["rx ax1", "rx ax2", "rx12"], {"lost", "orders"}),
        ({"x": "12"}, ["rx ax1", "rx ax2"], {"G-single"}),
        ({"x": "121"}, ["ax1", "ax2"], {"doubled"}),
        ({"x": "1"}, ["!ax1"], {"aborted"}),
        ({"x": ""}, ["!ax1", "rx1"], {"aborted", "orders"}),
        ({"x": "12"}, ["ax1 ax2", "rx1"], {"intermediate", "G-single"}),
        ({"x": "7"}, ["rx7"], {"garbage"}),
        ({"x": "12"}, ["ax1 ax2", "rx2"], {"orders"}),
        ({"x": "1"}, ["ax1 rx"], {"internal"}),
        ({"x": "12"}, ["ax1", "rx rx1 ax2"], {"internal", "G-single"}),
    ],
    ids=lambda value: " | ".join(value) if isinstance(value, list) else "",
)
def test_each_anomaly_is_found_by_its_name(last, texts, found):
    assert words(last, *texts) == found


@pytest.mark.parametrize("last", ["1", ""])
def test_an_append_whose_outcome_is_unknown_may_be_there_or_not(last):
    assert words({"x": last}, "?ax1") == set()


def test_one_that_is_there_twice_is_doubled():
    assert words({"x": "11"}, "?ax1") == {"doubled"}


def test_the_reads_of_an_unknown_transaction_count_once_it_is_known_to_be_stored():
    assert words({"x": "1", "y": "1"}, "?rx ay1", "ry ax1") == {"G2"}
    assert words({"x": "1"}, "?rx ay1", "ry ax1") == set()


def test_a_long_chain_needs_no_recursion():
    count = 3_000
    history = [Transaction((Append(1, value),)) for value in range(count)]
    assert check(history, {1: tuple(range(count))}) == []
    ring = [*history, Transaction((Append(2, 1), Append(1, count)))]
    ring[0] = Transaction((Append(1, 0), Append(2, 2)))
    found = check(ring, {1: tuple(range(count + 1)), 2: (1, 2)})
    assert {one.word for one in found} == {"G0"}
