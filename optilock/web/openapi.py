"""What an OpenAPI document says of conditional requests: headers, and the answers beside 2xx.

::

    answers("PUT", 204)[412]["content"]             # {"application/problem+json": {"schema": ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Required, TypedDict

from optilock.web.problems import MEDIA_TYPE

__all__ = [
    "ANSWERS",
    "ETAG",
    "IF_MATCH",
    "IF_NONE_MATCH",
    "ProblemDocument",
    "answers",
    "told",
]

IF_MATCH: Final = "The ETag of the version that is to be changed."
IF_NONE_MATCH: Final = "* to make what is not there; to read: the ETag that is known already."
ETAG: Final = "The version, to be sent in If-Match."


class ProblemDocument(TypedDict, total=False):
    """A problem document, for whoever makes schemas of types."""

    type: Required[str]
    title: Required[str]
    status: Required[int]
    detail: Required[str]
    etag: str
    conflicts: dict[str, dict[str, Any]]
    names: list[str]
    index: int


_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "etag": {"type": "string", "description": "The ETag of the current version."},
        "conflicts": {"type": "object", "description": "For each field up to three values."},
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The members of the body that it is about.",
        },
        "index": {"type": "integer", "description": "Which operation of several failed, from 0."},
    },
}
#: What an answer beside 2xx means.
ANSWERS: Final[Mapping[int, str]] = {
    304: "The version that is known already.",
    400: "A condition cannot be read, or the body cannot be stored.",
    404: "There is nothing here.",
    409: "Somebody else was first, or it is there already.",
    412: "It is in another version.",
    428: "A condition is needed.",
}
_READS = ("GET", "HEAD")


def told(method: str) -> tuple[int, ...]:
    """The statuses beside 2xx that a request of this method may get."""
    return (304, 400, 404, 412) if method.upper() in _READS else (400, 404, 409, 412, 428)


def answers(method: str, success: int) -> dict[int | str, dict[str, Any]]:
    """The responses of an operation, by status; ``success`` has an ETag, unless it is a DELETE."""
    found: dict[int | str, dict[str, Any]] = {one: _answer(one) for one in told(method)}
    if method.upper() != "DELETE":
        found[success] = {"description": "Done.", "headers": _etag()}
    return found


def _answer(status: int) -> dict[str, Any]:
    found: dict[str, Any] = {"description": ANSWERS[status]}
    if status in (304, 412):
        found["headers"] = _etag()
    if status != 304:
        found["content"] = {MEDIA_TYPE: {"schema": dict(_SCHEMA)}}
    return found


def _etag() -> dict[str, Any]:
    return {"ETag": {"description": ETAG, "schema": {"type": "string"}}}
