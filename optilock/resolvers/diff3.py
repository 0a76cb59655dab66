"""The three-way walk of diff3, over sequences of anything hashable; and the line ends of texts.

>>> from optilock.resolvers.diff3 import Effort, chunks
>>> for chunk in chunks("abcd", "aXcd", "abcY", Effort(1000)):
...     print(chunk.original, chunk.current, chunk.database)
a a a
b X b
c c c
d d Y

The original is aligned with either side. Where both alignments keep an element, the walk has an
anchor; the elements between two anchors are one chunk, to be settled as a whole. Two edits with no
unchanged element between them are therefore one chunk, as in ``git merge-file``.

After S. Khanna, K. Kunal and B. C. Pierce, "A Formal Investigation of Diff3", FSTTCS 2007; the
alignment is that of :mod:`difflib` instead of their longest common subsequence.

A browser sends every text of a form with CR and LF, whichever line ends it received. So texts are
compared with LF alone, and a text is written with the line ends that were stored:

>>> from optilock.resolvers.diff3 import in_style_of, plain
>>> plain("one\\r\\ntwo\\rthree")
'one\\ntwo\\nthree'
>>> in_style_of("one\\ntwo\\nfour", "one\\r\\ntwo")
'one\\r\\ntwo\\r\\nfour'

Where the stored text has several kinds, each unchanged line keeps its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

Elements = Sequence[Hashable]


class TooMuchWork(Exception):
    """The sequences are too long and too repetitive to be aligned in reasonable time."""


class Effort:
    """The number of comparisons that may still be made; one merge shares one."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork


@dataclass(frozen=True)
class Chunk:
    """A piece of all three sequences. ``start`` is where it begins in the original."""

    start: int
    original: Elements
    current: Elements
    database: Elements


def chunks(
    original: Elements, current: Elements, database: Elements, effort: Effort
) -> Iterator[Chunk]:
    """Cut the three sequences into pieces that can be settled one by one, and yield them in order.

    Raises :class:`TooMuchWork` when ``effort`` is used up.
    """
    ours = _kept(original, current, effort)
    theirs = _kept(original, database, effort)
    anchors = [(i, ours[i], theirs[i]) for i in sorted(ours.keys() & theirs.keys())]
    # The end of all three is an anchor too; without it the last chunk would be lost.
    anchors.append((len(original), len(current), len(database)))
    o = a = b = 0
    for i, j, k in anchors:
        if (i, j, k) != (o, a, b):
            yield Chunk(o, original[o:i], current[a:j], database[b:k])
        o, a, b = i + 1, j + 1, k + 1
        if i < len(original):
            yield Chunk(i, original[i:o], current[j:a], database[k:b])


def _kept(original: Elements, side: Elements, effort: Effort) -> dict[int, int]:
    """Map indexes of the original to indexes of the side, for elements that the side has kept."""
    head, tail = common_ends(original, side)
    end, shift = len(original) - tail, len(side) - len(original)
    kept = {i: i for i in range(head)}
    kept.update((i, i + shift) for i in range(end, len(original)))
    for i, j, size in _matches(original[head:end], side[head : len(side) - tail], effort):
        kept.update((head + i + n, head + j + n) for n in range(size))
    return kept


def common_ends(a: Elements, b: Elements) -> tuple[int, int]:
    """Return the number of elements that both begin with, and of the others that both end with."""
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    rest = shorter - head
    return head, next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)


def _matches(a: Elements, b: Elements, effort: Effort) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks of ``SequenceMatcher.get_matching_blocks``, in any order.

    They are paid from ``effort``.

    Its own loop cannot be stopped, and on repetitive input (every second line is blank, all
    others differ) it takes cubic time.
    """
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    places = Counter(b)
    todo = [(0, len(a), 0, len(b))]
    while todo:
        alo, ahi, blo, bhi = todo.pop()
        if alo == ahi or blo == bhi:
            continue
        # Measured: an element costs about as much as three of its comparisons.
        effort.spend(sum(3 + places[element] for element in a[alo:ahi]))
        i, j, size = matcher.find_longest_match(alo, ahi, blo, bhi)
        if size:
            yield i, j, size
            todo += [(alo, i, blo, j), (i + size, ahi, j + size, bhi)]


# -- line ends -------------------------------------------------------------------------------------

_ENDS = re.compile(r"\r\n|\n|\r")
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
#: Comparisons, where the stored text has several kinds of line ends: about a tenth of a second.
_STEPS = 1_000_000


def normalize_line_ends(text: str) -> str:
    """Return the text with LF at the end of each line."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def restore_line_ends(text: str, stored: str, before: str = "") -> str:
    """Return the text with the line ends of ``stored``, or of ``before`` if ``stored`` is one line.

    A text that differs from the stored one by line ends only is the stored one. Where neither has a
    line end, it is LF.
    """
    ends = Counter(_ENDS.findall(stored)) or Counter(_ENDS.findall(before))
    usual = ends.most_common(1)[0][0] if ends else "\n"
    if len(ends) > 1 and stored:
        return _line_by_line(normalize_line_ends(text), stored, usual)
    return _ended(normalize_line_ends(text), usual)


def _ended(text: str, end: str) -> str:
    return text if end == "\n" else text.replace("\n", end)


def _line_by_line(text: str, stored: str, usual: str) -> str:
    there = _LINES.findall(stored)
    before, after = [normalize_line_ends(line) for line in there], _LINES.findall(text)
    if before == after:
        return stored
    found: list[str] = []
    try:
        for chunk in chunks(before, after, before, Effort(_STEPS)):
            if chunk.original == chunk.current:
                found += there[chunk.start : chunk.start + len(chunk.original)]
            else:
                found += (_ended(str(line), usual) for line in chunk.current)
    except TooMuchWork:
        return _ended(text, usual)
    return "".join(found)
