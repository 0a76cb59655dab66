"""The three-way walk of diff3, over sequences of anything hashable.

>>> from optilock.conflicts.diff3 import Effort, chunks
>>> for chunk in chunks("abcd", "aXcd", "abcY", Effort(1000)):
...     print(chunk.original, chunk.current, chunk.database)
a a a
b X b
c c c
d d Y

The original is aligned with either side. Where both alignments keep an element, the walk has an
anchor; what lies between two anchors is one chunk, to be settled as a whole. Two edits with no
unchanged element between them are therefore one chunk, as in ``git merge-file``.

After S. Khanna, K. Kunal and B. C. Pierce, "A Formal Investigation of Diff3", FSTTCS 2007; the
alignment is that of :mod:`difflib` instead of their longest common subsequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

Elements = Sequence[Hashable]


class TooMuchWork(Exception):
    """The sequences are too long and too repetitive to be aligned in reasonable time."""


class Effort:
    """How many comparisons may still be made; one merge shares one."""

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
    """The three sequences, cut into pieces that can be settled one by one, in order.

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
    """Index in the original -> index in the side, for every element that the side has kept."""
    head, tail = common_ends(original, side)
    end, shift = len(original) - tail, len(side) - len(original)
    kept = {i: i for i in range(head)}
    kept.update((i, i + shift) for i in range(end, len(original)))
    for i, j, size in _matches(original[head:end], side[head : len(side) - tail], effort):
        kept.update((head + i + n, head + j + n) for n in range(size))
    return kept


def common_ends(a: Elements, b: Elements) -> tuple[int, int]:
    """How many elements both begin with, and how many of the others both end with."""
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    rest = shorter - head
    return head, next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)


def _matches(a: Elements, b: Elements, effort: Effort) -> Iterator[tuple[int, int, int]]:
    """What ``SequenceMatcher.get_matching_blocks`` finds, in any order, paid from ``effort``.

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
