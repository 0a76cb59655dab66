"""A merged text whose open places, which both sides changed, are left for a person to settle.

An open place holds both sides, each below a mark (:data:`MARKS`): a line of its own, as version
control programs write it. Every other edit is merged, whichever side made it. A text with marks
must not be stored: :func:`lines_with_marks` finds them. A text that had such lines before may keep
them.

Without a common original, each line that differs is an open place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from optilock.resolvers.diff3 import (
    Chunk,
    Effort,
    TooMuchWork,
    chunks,
    common_ends,
    normalize_line_ends,
)
from optilock.resolvers.merge import LINES, merge_lines

#: Before ours, between both, and after theirs; each is a line of its own.
MARKS = ("<<<<<<< yours, not saved", "======= theirs, stored", ">>>>>>> end")

#: Comparisons without a base: about a tenth of a second.
_STEPS = 1_000_000


@dataclass(frozen=True)
class Place:
    """A part of a text that is still open; ``line`` is that of its first mark, from 1."""

    line: int
    yours: str
    theirs: str


def merge_with_marks(base: str | None, yours: str, theirs: str) -> str:
    """Merge both texts, with LF, and with marks around places that both have changed."""
    ours, others = _ended(normalize_line_ends(yours)), _ended(normalize_line_ends(theirs))
    try:
        merged = _merged(None if base is None else _ended(normalize_line_ends(base)), ours, others)
    except TooMuchWork:
        merged = "".join(_block(Chunk(0, [], LINES.findall(ours), LINES.findall(others))))
    sides = [not text or text.endswith(("\n", "\r")) for text in (yours, theirs, base or "")]
    whole = sides[1] if sides[0] is sides[2] else sides[0]  # the side that changed it
    marked = merged.endswith(f"{MARKS[2]}\n")
    return merged if whole or marked else merged.removesuffix("\n")


def _ended(text: str) -> str:
    """Return the text with an end of its last line: no difference, and a mark may follow it."""
    return text if text.endswith("\n") or not text else f"{text}\n"


def _merged(base: str | None, ours: str, theirs: str) -> str:
    if base is not None:
        return merge_lines(base, ours, theirs, settle=_block)
    before, after = LINES.findall(theirs), LINES.findall(ours)
    found: list[str] = []
    for chunk in chunks(before, after, before, Effort(_STEPS)):
        same = chunk.current == chunk.original
        found += map(str, chunk.original) if same else _block(chunk)
    return "".join(found)


def _block(clash: Chunk) -> list[str]:
    """Return both sides with marks, without the lines that both begin with or end with."""
    ours, theirs = [*map(str, clash.current)], [*map(str, clash.database)]
    head, tail = common_ends(ours, theirs)
    before, middle, after = (f"{mark}\n" for mark in MARKS)
    return [
        *ours[:head],
        before,
        *ours[head : len(ours) - tail],
        middle,
        *theirs[head : len(theirs) - tail],
        after,
        *ours[len(ours) - tail :],
    ]


def lines_with_marks(text: str, before: str = "") -> list[int]:
    """Return the numbers, from 1, of lines with a mark that the text ``before`` did not have."""
    if not any(mark in text for mark in MARKS):
        return []
    known = Counter(filter(None, map(_mark, normalize_line_ends(before).split("\n"))))
    found = [
        (number, _mark(line))
        for number, line in enumerate(normalize_line_ends(text).split("\n"), 1)
    ]
    there = Counter(mark for _, mark in found if mark)
    return [number for number, mark in found if mark and there[mark] > known[mark]]


def _mark(line: str) -> str | None:
    return next((mark for mark in MARKS if line.startswith(mark)), None)


def places_in(text: str) -> list[Place]:
    """Return the whole open places of a text, in their order."""
    found: list[Place] = []
    begin, mark_before = 0, None
    sides: dict[str, list[str]] = {}
    for number, line in enumerate(normalize_line_ends(text).split("\n"), 1):
        mark = _mark(line)
        if mark == MARKS[0]:
            begin, sides = number, {mark: []}
        elif mark == MARKS[1] and mark_before == MARKS[0]:
            sides[mark] = []
        elif mark == MARKS[2] and mark_before == MARKS[1] and len(sides) == 2:
            yours, theirs = map("\n".join, sides.values())
            found.append(Place(begin, yours, theirs))
        elif mark is None and mark_before in sides:
            sides[str(mark_before)].append(line)
        mark_before = mark or mark_before
    return found
