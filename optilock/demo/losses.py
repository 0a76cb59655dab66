"""Which committed edits are not in the stored pages.

>>> from optilock.demo.edits import Edit
>>> from optilock.demo.losses import Stored, compare
>>> edit = Edit(editor=1, number=1, page="with", place=0.0, pause=0.0, remark="")
>>> compare({"with": "text"}, [Stored("with", "text", views=0, tags=[])], [edit]).lost
1

An edit is lost when its mark is not in the text, or its tag not among the tags. A counter has no
marks: when fewer views are stored than edits were committed, that many edits are lost at least.
The larger of the two numbers counts, page by page.

The opposite is looked for as well: an edit that is stored twice, or stored although its editor
was told that it failed, and text of the original page that disappeared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optilock.demo.edits import Edit

__all__ = ["Losses", "Stored", "compare"]

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
