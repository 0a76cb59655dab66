"""One edit: it leaves its mark in the text, adds its tag and counts one view.

>>> from optilock.demo.edits import Edit, inserted
>>> edit = Edit(editor=1, number=7, page="with", place=0.0, pause=0.01, remark="Checked.")
>>> inserted("First paragraph.\\n\\nSecond.", edit)
'First paragraph.\\n[edit 1-7] Checked.\\n\\nSecond.'

An edit adds a line at the end of one paragraph. Two edits in different paragraphs can be merged;
two in the same paragraph add different lines at the same place, and nobody but the authors can
say which comes first. The marks are how a lost edit is found afterwards: each is unique, and none
is a part of another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Edit", "Editable", "apply", "inserted", "plan"]

_REMARKS = (
    "Checked against the grammar.",
    "An example would help here.",
    "See also: contextlib.",
    "This is true of generators too.",
    "Newcomers stumble over this one.",
)
_SHORTEST, _LONGEST = 0.004, 0.024


class Editable(Protocol):
    """A page as an edit needs it: both models have this shape."""

    body: str
    views: int
    tags: list[str]


@dataclass(frozen=True)
class Edit:
    """What an editor will do, decided before anybody starts: every strategy gets the same."""

    editor: int
    number: int
    page: str
    #: Where in the text, from 0 (the first paragraph) up to but not including 1.
    place: float
    #: Seconds between reading and writing.
    pause: float
    remark: str

    @property
    def mark(self) -> str:
        return f"[edit {self.editor}-{self.number}]"

    @property
    def tag(self) -> str:
        return f"edit-{self.editor}-{self.number}"


def apply(edit: Edit, page: Editable) -> None:
    """Change the three attributes of a page that has been read."""
    page.body = inserted(page.body, edit)
    page.views = page.views + 1
    page.tags = [*page.tags, edit.tag]


def inserted(body: str, edit: Edit) -> str:
    """The text with the edit's line at the end of its paragraph."""
    paragraphs = body.split("\n\n")
    chosen = int(edit.place * len(paragraphs))
    paragraphs[chosen] += f"\n{edit.mark} {edit.remark}"
    return "\n\n".join(paragraphs)


def plan(*, editors: int, edits: int, pages: Sequence[str], seed: int) -> list[list[Edit]]:
    """The edits of each editor; the same seed always gives the same plan."""
    chance = random.Random(seed)
    return [
        [_edit(chance, editor, number, pages) for number in range(1, edits + 1)]
        for editor in range(1, editors + 1)
    ]


def _edit(chance: random.Random, editor: int, number: int, pages: Sequence[str]) -> Edit:
    return Edit(
        editor=editor,
        number=number,
        page=chance.choice(pages),
        # Squared: the beginning of a page gets more edits than its end, so some of them clash.
        place=chance.random() ** 2,
        pause=chance.uniform(_SHORTEST, _LONGEST),
        remark=chance.choice(_REMARKS),
    )
