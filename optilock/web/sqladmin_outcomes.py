"""The outcome of one request to :mod:`optilock.web.sqladmin`, and its sentences.

sqladmin catches every error of a view and shows its text. So a view notes a conflict in the
:class:`Outcome` of the request, and the ``Admin`` makes the answer of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optilock.errors import BadPrecondition, ConfigurationError, Entry
from optilock.errors.base import extra
from optilock.preconditions.filled_forms import FilledForm
from optilock.serialize import last_change

with extra("sqladmin"):
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

#: A conflict about other rows, or about the order of two transactions.
ELSEWHERE = (
    "Nothing is saved yet, and nothing is lost. Another transaction has changed something that this"
    " edit depends on, at the same moment. The form has what you sent: look at it, and save."
)
NOT_TRIED = "it was not tried, because of the failure before it."


@dataclass
class Kept:
    """A row that was not deleted, or whose deletion was not the end of it."""

    pk: str
    why: str
    #: 0: the row was not tried.
    status: int = 409


@dataclass
class Outcome:
    """The result of one request: sqladmin's own answer stands if there is nothing in it."""

    #: Key of a row -> its tag, of a delete.
    tags: Mapping[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    again: FilledForm | None = None
    #: The reason to show the form again, if it is not that of ``again``.
    sentence: str = ""
    obj: Any = None
    refused: BadPrecondition | None = None
    #: A new row was not stored, because of a conflict about others.
    conflict: bool = False
    #: The answer of a hook.
    answer: Response | None = None


def outcome_of(request: Request) -> Outcome:
    found = getattr(request.state, "optilock", None)
    if isinstance(found, Outcome):
        return found
    raise ConfigurationError(
        "This view needs the Admin of optilock.web.sqladmin, which answers conflicts. Nothing was"
        " written."
    )


def conflict_text(own: Entry[Any] | None) -> str:
    """Return why a row was kept, by its entry in the error."""
    if own is None:
        return "another transaction has changed something that it depends on, at the same moment."
    if own.database is None:
        return "another user has deleted it in the meantime."
    words = last_change(own.changed_by, own.changed_at)
    return f"it has changed since this page was made{words and f' ({words})'}."


def failure_text(error: Exception) -> str:
    """Return the first line of an error: without a statement, its values and a driver's details."""
    said = error.detail if isinstance(error, HTTPException) else str(getattr(error, "orig", error))
    return said.partition("\n")[0] or type(error).__name__
