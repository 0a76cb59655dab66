"""Edits: what one of them changes, the plan of all, and which are not in the stored pages.

An edit leaves its mark in the text, adds its tag and counts one view::

>>> from optilock.demo.edits import Edit, Stored, compare, inserted
>>> edit = Edit(editor=1, number=7, page="with", place=0.0, pause=0.01, remark="Checked.")
>>> inserted("First paragraph.\\n\\nSecond.", edit)
'First paragraph.\\n[edit 1-7] Checked.\\n\\nSecond.'
>>> compare({"with": "text"}, [Stored("with", "text", views=0, tags=[])], [edit]).lost
1

It adds a line at the end of one paragraph. Two edits in different paragraphs can be merged; two in
the same paragraph add different lines at the same place, and nobody but the authors can say which
comes first. The marks are how a lost edit is found afterwards: each is unique, and none is a part
of another.

An edit is lost when its mark is not in the text, or its tag not among the tags. A counter has no
marks: when fewer views are stored than edits were committed, that many edits are lost at least.
The larger of the two numbers counts, page by page.

The opposite is looked for as well: an edit that is stored twice, or stored although its editor
was told that it failed, and text of the original page that disappeared.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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


_LINE_OF_AN_EDIT = re.compile(r"\n\[edit \d+-\d+\][^\n]*")


@dataclass(frozen=True)
class Stored:
    """A page as it is in the database after everybody has finished."""

    name: str
    body: str
    views: int
    tags: Sequence[str]


@dataclass(frozen=True)
class Losses:
    """``lost`` edits, ``surplus`` ones (stored twice or unasked), names of ``damaged`` pages."""

    lost: int
    surplus: int
    damaged: tuple[str, ...]


def compare(
    originals: Mapping[str, str], stored: Iterable[Stored], committed: Iterable[Edit]
) -> Losses:
    """Hold the stored pages against the edits whose COMMIT had returned."""
    pages = {page.name: page for page in stored}
    edits = list(committed)
    here = {name: [edit for edit in edits if edit.page == name] for name in originals}
    return Losses(
        lost=sum(_lost(pages.get(name), here[name]) for name in originals),
        surplus=sum(_surplus(pages.get(name), here[name]) for name in originals),
        damaged=tuple(name for name in originals if _damaged(pages.get(name), originals[name])),
    )


def _lost(page: Stored | None, edits: Sequence[Edit]) -> int:
    if page is None:
        return len(edits)
    missing = [edit for edit in edits if edit.mark not in page.body or edit.tag not in page.tags]
    return max(len(missing), len(edits) - page.views)


def _surplus(page: Stored | None, edits: Sequence[Edit]) -> int:
    if page is None:
        return 0
    known = {edit.mark for edit in edits}
    marks = [line.strip().split("]")[0] + "]" for line in _LINE_OF_AN_EDIT.findall(page.body)]
    unasked = sum(1 for mark in marks if mark not in known)
    twice = len(marks) - len(set(marks))
    return max(unasked + twice, len(page.tags) - len(set(page.tags)), page.views - len(edits), 0)


def _damaged(page: Stored | None, original: str) -> bool:
    return page is None or _LINE_OF_AN_EDIT.sub("", page.body) != original
