"""One conflict as a value: the texts of both users, their common base, and the merge.

>>> from optilock_apps.wiki.conflict import Conflict
>>> conflict = Conflict(base="hot, sweet", yours="hot, very sweet", theirs="warm, sweet")
>>> conflict.merged
'warm, very sweet'

Where words clash, the text for the box has both sides of that place between marks, and all other
edits of both (:mod:`optilock.resolvers.open_text`): saving it drops nothing unseen.

``base`` is the text that both began from. If it is unknown (the page was created again, or the form
does not prove it), nothing is merged: yours is compared with theirs, and each line that differs is
such a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from optilock.errors import CannotMerge
from optilock.resolvers.diff3 import Effort, TooMuchWork, chunks, common_ends
from optilock.resolvers.merge import LINES, WORDS, merge_text
from optilock.resolvers.open_text import Place, merge_with_marks, places_in

__all__ = ["Conflict", "Mark", "fold_equal", "marks"]


@dataclass(frozen=True)
class Conflict:
    """Another user has stored ``theirs`` while you were writing ``yours``."""

    yours: str
    theirs: str
    base: str | None = None

    @cached_property
    def merged(self) -> str | None:
        """Both edits in one text; ``None`` where words clash, or without a base."""
        if self.base is None:
            return None
        try:
            return merge_text(self.base, self.yours, self.theirs)
        except CannotMerge:
            return None

    @cached_property
    def box(self) -> str:
        """The text to go on from: all edits of both."""
        if self.merged is not None:
            return self.merged
        return merge_with_marks(self.base, self.yours, self.theirs)

    @property
    def places(self) -> list[Place]:
        """The places that both have changed, open in the box."""
        return [] if self.merged is not None else places_in(self.box)

    @cached_property
    def their_marks(self) -> list[Mark]:
        return marks(self._compared, self.theirs)

    @cached_property
    def your_marks(self) -> list[Mark]:
        return marks(self._compared, self.yours)

    @property
    def _compared(self) -> str:
        return self.theirs if self.base is None else self.base


# -- deleted and inserted words --------------------------------------------------------------------

#: Comparisons for one text: about a tenth of a second.
_STEPS = 1_000_000
#: A word that has moved away from the end of a line has only got a space.
_PARTS = re.compile(r"\w+|\s+|[^\w\s]")


class Mark(NamedTuple):
    """A piece of one text, or of both."""

    kind: Literal["equal", "deleted", "inserted"]
    text: str


#: Lines that are shown next to a change, and those that are worth folding.
_AROUND, _MANY = 3, 4


def fold_equal(text: str, *, first: bool, last: bool) -> tuple[str, str, str]:
    """Return an equal piece as the lines after a change, those to fold, and those before the next.

    ``first``: no change is before it; ``last``: none follows.
    """
    lines = LINES.findall(text)
    head, tail = (0 if first else _AROUND), (0 if last else _AROUND)
    if len(lines) < head + tail + _MANY:
        return text, "", ""
    end = len(lines) - tail
    return "".join(lines[:head]), "".join(lines[head:end]), "".join(lines[end:])


def marks(old: str, new: str) -> list[Mark]:
    """Return the pieces of both texts in their order; neighbours are of different kinds.

    The texts are aligned as for a merge (:mod:`optilock.resolvers.diff3`): line by line, and word
    by word inside changed lines. Lines that are too long and too repetitive are marked whole. The
    equal and the deleted pieces, joined, are the old text; the equal and the inserted ones are the
    new text.
    """
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
    """Return pieces of the old text, each with its counterpart in the new one."""
    before, after = pattern.findall(old), pattern.findall(new)
    return [
        ("".join(map(str, chunk.original)), "".join(map(str, chunk.current)))
        for chunk in chunks(before, after, before, effort)
    ]


def _changed(old: list[str], new: list[str]) -> Iterator[Mark]:
    """Yield the marks of two changed lines: their common beginning and end are equal."""
    head, tail = common_ends(old, new)
    yield Mark("equal", "".join(old[:head]))
    yield Mark("deleted", "".join(old[head : len(old) - tail]))
    yield Mark("inserted", "".join(new[head : len(new) - tail]))
    yield Mark("equal", "".join(old[len(old) - tail :]))


def _joined(found: Iterable[Mark]) -> Iterator[Mark]:
    there = (mark for mark in found if mark.text)
    for kind, run in groupby(there, key=lambda mark: mark.kind):
        yield Mark(kind, "".join(mark.text for mark in run))
