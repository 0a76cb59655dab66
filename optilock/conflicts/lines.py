"""The ends of lines: CR and LF from a browser, LF or whatever else is stored.

A browser sends every text of a form with CR and LF, whatever it was shown. So texts are compared
with LF alone, and what is written has the line ends that were stored::

    >>> from optilock.conflicts.lines import in_style_of, plain
    >>> plain("one\\r\\ntwo\\rthree")
    'one\\ntwo\\nthree'
    >>> in_style_of("one\\ntwo\\nfour", "one\\r\\ntwo")
    'one\\r\\ntwo\\r\\nfour'

Where the stored text has several kinds, each line that is as it was keeps its own.
"""

from __future__ import annotations

import re
from collections import Counter

from optilock.conflicts.diff3 import Effort, TooMuchWork, chunks

__all__ = ["in_style_of", "plain"]

_ENDS = re.compile(r"\r\n|\n|\r")
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
#: Comparisons, where the stored text has several kinds of line ends: about a tenth of a second.
_STEPS = 1_000_000


def plain(text: str) -> str:
    """The text with LF at the end of each line."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def in_style_of(text: str, stored: str, before: str = "") -> str:
    """The text with the line ends of ``stored``; where that has one line, with those of ``before``.

    A text that differs from the stored one by nothing else is the stored one. Where neither has a
    line end, it is LF.
    """
    ends = Counter(_ENDS.findall(stored)) or Counter(_ENDS.findall(before))
    usual = ends.most_common(1)[0][0] if ends else "\n"
    if len(ends) > 1 and stored:
        return _line_by_line(plain(text), stored, usual)
    return _ended(plain(text), usual)


def _ended(text: str, end: str) -> str:
    return text if end == "\n" else text.replace("\n", end)


def _line_by_line(text: str, stored: str, usual: str) -> str:
    there = _LINES.findall(stored)
    before, after = [plain(line) for line in there], _LINES.findall(text)
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
