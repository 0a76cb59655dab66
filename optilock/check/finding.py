"""One thing that was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


class Severity(StrEnum):
    """How bad it is."""

    #: A lost update can happen, or a write fails, although everything looks protected.
    ERROR = "error"
    #: It works, and something makes it weaker than it looks.
    WARNING = "warning"
    #: Good to know.
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """What was found, and what to do about it."""

    #: A short name that stays the same, for programs: ``"no-version"``.
    code: str
    severity: Severity
    #: A class, ``table.column``, or ``"connection"``.
    subject: str
    message: str
    advice: str
