"""One thing that was found, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.exc import DBAPIError

from optilock.dialects.weaknesses import Weakness


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


def error(code: str, subject: str, message: str, advice: str) -> Finding:
    return Finding(code, Severity.ERROR, subject, message, advice)


def warning(code: str, subject: str, message: str, advice: str) -> Finding:
    return Finding(code, Severity.WARNING, subject, message, advice)


def note(code: str, subject: str, message: str, advice: str) -> Finding:
    return Finding(code, Severity.NOTE, subject, message, advice)


def weak(found: Weakness, subject: str) -> Finding:
    """What a database says of itself."""
    kind = error if found.severe else warning
    return kind(found.code, subject, found.message, found.advice)


def unreadable(name: str, error: DBAPIError) -> Finding:
    """What the user of the connection may not look at."""
    return warning(
        "unreadable",
        name,
        f"It could not be read ({type(error.orig).__name__}), so nobody knows what is in it.",
        "Check as a user who may read the table.",
    )
