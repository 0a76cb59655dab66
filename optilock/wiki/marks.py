"""Which words of a text were deleted, and which were inserted.

>>> from optilock.wiki.marks import marks
>>> for mark in marks("one two three", "one 2 three, four"):
...     print(mark.kind, repr(mark.text))
equal 'one '
deleted 'two'
inserted '2'
equal ' three'
inserted ', four'

The texts are aligned by the walk that also merges them (:mod:`optilock.conflicts.diff3`): line by
line, and word by word inside of changed lines. Lines that are too long and too repetitive for that
are marked whole.

What is equal or deleted, joined, is the old text; what is equal or inserted is the new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from optilock.conflicts.diff3 import Effort, TooMuchWork, chunks, common_ends
from optilock.conflicts.merge import LINES, WORDS

__all__ = ["Mark", "marks"]

#: Comparisons for one text: about a tenth of a second.
_STEPS = 1_000_000
#: A word that has moved away from the end of a line has only got a space.
_PARTS = re.compile(r"\w+|\s+|[^\w\s]")


class Mark(NamedTuple):
    """A piece of one text, or of both."""

    kind: Literal["equal", "deleted", "inserted"]
    text: str


def marks(old: str, new: str) -> list[Mark]:
    """The pieces of both texts in their order; neighbours are of different kinds."""
    return list(_joined(_by_lines(old, new, Effort(_STEPS))))


def _by_lines(old: str, new: str, effort: Effort) -> Iterator[Mark]:
    try:
        pairs = _aligned(LINES, old, new, effort)
    except TooMuchWork:
        pairs = [(old, new)]
    for before, after in pairs:
        if before == after:
            yield Mark("equal", after)
        else:
            yield from _by_words(before, after, effort)


def _by_words(old: str, new: str, effort: Effort) -> Iterator[Mark]:
    try:
        pairs = _aligned(WORDS, old, new, effort)
    except TooMuchWork:
        pairs = [(old, new)]
    for before, after in pairs:
        yield from _changed(_PARTS.findall(before), _PARTS.findall(after))


def _aligned(pattern: re.Pattern[str], old: str, new: str, effort: Effort) -> list[tuple[str, str]]:
    """Pieces of the old text, each with what stands in its place in the new one."""
    before, after = pattern.findall(old), pattern.findall(new)
    return [
        ("".join(map(str, chunk.original)), "".join(map(str, chunk.current)))
        for chunk in chunks(before, after, before, effort)
    ]


def _changed(old: list[str], new: list[str]) -> Iterator[Mark]:
    """The parts that both begin with and end with are equal."""
    head, tail = common_ends(old, new)
    yield Mark("equal", "".join(old[:head]))
    yield Mark("deleted", "".join(old[head : len(old) - tail]))
    yield Mark("inserted", "".join(new[head : len(new) - tail]))
    yield Mark("equal", "".join(old[len(old) - tail :]))


def _joined(found: Iterable[Mark]) -> Iterator[Mark]:
    there = (mark for mark in found if mark.text)
    for kind, run in groupby(there, key=lambda mark: mark.kind):
        yield Mark(kind, "".join(mark.text for mark in run))
