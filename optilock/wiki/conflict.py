"""One conflict as a value: who began from what, and what can be made of it.

>>> from optilock.wiki.conflict import Conflict
>>> conflict = Conflict(base="hot, sweet", yours="hot, very sweet", theirs="warm, sweet")
>>> conflict.merged
'warm, very sweet'

Where words clash, the text for the box has both sides of that place between marks, and all other
edits of both (:mod:`optilock.conflicts.open_text`): whoever saves it drops nothing unseen.

``base`` is the text that both began from. Where nobody can say what that was (the page was made
anew, or the form does not prove it), nothing is merged: yours is compared with theirs, and each
line that differs is such a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from optilock.conflicts.merge import merge_text
from optilock.conflicts.open_text import Place, merge_open, places_in
from optilock.errors import CannotMerge
from optilock.wiki.marks import Mark, marks

__all__ = ["Conflict"]


@dataclass(frozen=True)
class Conflict:
    """Somebody has stored ``theirs`` while you were writing ``yours``."""

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
        """What the person goes on from: all edits of both."""
        if self.merged is not None:
            return self.merged
        return merge_open(self.base, self.yours, self.theirs)

    @property
    def places(self) -> list[Place]:
        """What both have changed, and the box has open."""
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
