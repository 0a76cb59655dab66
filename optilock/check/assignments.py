"""Does the text of a trigger set the version? Read as text, by the few forms in which SQL does so.

``NEW.version := …`` and ``SET NEW.version = …``, ``SELECT … INTO NEW.version``, ``NEW := OLD``,
``RETURN OLD`` before an UPDATE, and an UPDATE of the trigger's own table. What a trigger calls, or
puts together as dynamic SQL, is not followed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from optilock.dialects.migrations import Found


@dataclass(frozen=True)
class Assigned:
    """Where a trigger sets the version."""

    text: str
    #: Does it set what comes after the old version, as a ``Counter`` does?
    is_next: bool


def assigned(trigger: Found, table: str, column: str) -> Assigned | None:
    """The first place where an UPDATE of ``table`` would set ``column``."""
    source = _bare(trigger.source or "")
    when = trigger.fires or source.upper()
    if not re.search(r"\bUPDATE\b", re.split(r"\bON\b", when)[0]):
        return None
    for form in _forms(table, column, when):
        found = re.search(form, source)
        if found is not None:
            text = " ".join(found.group().split()).strip("; ")
            return Assigned(text, _is_next(source[found.end() :], column))
    return None


def _forms(table: str, column: str, when: str) -> list[str]:
    name, into = re.escape(column.lower()), re.escape(table.lower())
    new = rf"\bnew\s*\.\s*{name}"
    forms = [
        rf"{new}\s*:=",
        rf"(?:^|;|\b(?:begin|then|else|loop|set)\b)\s*{new}\s*=",
        rf"\bset\b[^;()]*,\s*{new}\s*=",
        rf"\binto\s+(?:strict\s+)?{new}\b",
        r"\bnew\s*:=\s*old\b",
        rf"\bupdate\s+(?:only\s+)?(?:\w+\s*\.\s*)?{into}\b(?:(?!\bwhere\b)[^;])*?"
        rf"(?:\bset|,)\s*(?:{into}\s*\.\s*)?{name}\s*=",
    ]
    if "BEFORE" in when and "DELETE" not in when:
        forms.append(r"\breturn\s+old\b")
    return forms


def _is_next(after: str, column: str) -> bool:
    """``OLD.version + 1``, up to the end of the statement."""
    value = re.sub(r"[\s()]|coalesce|,0", "", re.split(r";|\bwhere\b|\bend\b|,\s*new\b", after)[0])
    return value == f"old.{column.lower()}+1"


def _bare(source: str) -> str:
    """In small letters, without comments, texts, and quotes around names."""
    without = re.sub(r"/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'", " ", source, flags=re.DOTALL)
    return re.sub(r"[\"`]", "", without).lower()
