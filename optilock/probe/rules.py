"""A finding, its outcome, the rules of the RFCs, and the verdict about a resource."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """The result of a check, and of all of them, from the best to the worst."""

    SAFE = "safe"
    #: Allowed, or only advised against: no verdict.
    NOTE = "note"
    #: Another check, or another option, may tell.
    UNCLEAR = "unclear"
    BREAKS = "breaks a rule"
    LOSES = "loses updates"


class Rule(NamedTuple):
    """A sentence of a standard, shortened."""

    section: str
    sentence: str


ETAG = Rule("RFC 9110 8.8.3", "An ETag is a quoted text that names one version.")
STRONG = Rule("RFC 9110 8.8.1", "A strong ETag changes whenever the content changes.")
CODINGS = Rule("RFC 9110 8.8.3.3", "Two codings of one version have different strong ETags.")
HEAD = Rule("RFC 9110 9.3.2", "HEAD has the fields that GET would have.")
IF_MATCH = Rule("RFC 9110 13.1.1", "If no ETag matches, the write is not performed.")
STRONGLY = Rule("RFC 9110 13.1.1", "If-Match compares strongly: no weak ETag matches.")
IF_NONE_MATCH = Rule("RFC 9110 13.1.2", "If the resource exists, * does not write it.")
NOT_MODIFIED = Rule("RFC 9110 13.1.2", "A GET with the current ETag is answered 304.")
WHEN = Rule("RFC 9110 13.2.1", "Conditions are evaluated when the write is performed.")
ORDER = Rule("RFC 9110 13.2.2", "If-Match is evaluated first, whatever else is sent.")
REQUIRED = Rule("RFC 6585 3", "428 prevents the lost update of a client without a condition.")
KEY = Rule("idempotency-key draft 2.6", "A request with the same key is not performed again.")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    outcome: Outcome
    check: str
    found: str
    rule: Rule | None = None


class Stopped(Exception):
    """The probe cannot go on; the message is the reason."""


def verdict_of(findings: Iterable[Finding]) -> Outcome:
    """Return the worst outcome, in which a note does not count."""
    order = list(Outcome)
    worst = max((one.outcome for one in findings), key=order.index, default=Outcome.UNCLEAR)
    return Outcome.SAFE if worst is Outcome.NOTE else worst
