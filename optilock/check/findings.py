"""A finding, its severity, and functions that make one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.exc import DBAPIError

from optilock.dialects.catalogue import Weakness


class Severity(StrEnum):
    """How bad a finding is."""

    #: A lost update can happen, or a write fails, although everything looks protected.
    ERROR = "error"
    #: It works, but the protection is weaker than it looks.
    WARNING = "warning"
    #: Good to know.
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """A place where the protection is weak or missing, and an advice."""

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


def weakness_finding(found: Weakness, subject: str) -> Finding:
    """Return the finding for a weakness that a database's own check reports."""
    kind = error if found.severe else warning
    return kind(found.code, subject, found.message, found.advice)


def unreadable_finding(name: str, error: DBAPIError) -> Finding:
    """Return the finding for an object that the user of the connection may not read."""
    return warning(
        "unreadable",
        name,
        f"It could not be read ({type(error.orig).__name__}), so its content is unknown.",
        "Check as a user who may read the table.",
    )
