"""The errors of the client, in one tree::

    ClientError
    ├── NoAnswer          no answer came: the outcome may be unknown
    ├── UnexpectedAnswer  the server refused, failed, or sent no JSON
    ├── MergeConflict     another client changed the same member
    ├── NoETag            the server has given nothing that a write could demand
    └── ConditionIgnored  the server stores writes whose If-Match does not match

Their messages have the URL without user, password and query, and no part of a body. They can be
pickled with all their attributes.
"""

from __future__ import annotations

from typing import Any

from httpx2 import URL

from optilock_client.merging import Conflict

__all__ = [
    "ClientError",
    "ConditionIgnored",
    "MergeConflict",
    "NoAnswer",
    "NoETag",
    "UnexpectedAnswer",
    "shown",
]


class ClientError(Exception):
    """Base class of the client's errors."""

    #: The address, without user, password and query.
    url: str

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class NoAnswer(ClientError):
    """No answer came. A write that was sent may be stored or not."""

    #: Of ``once``: a server that knows such keys does it once if it is sent again with this one.
    key: str | None


class UnexpectedAnswer(ClientError):
    """An answer with which the call cannot go on: a refusal, a failure, or no JSON."""

    #: The status of the answer.
    status: int
    #: Its body.
    body: bytes
    #: The seconds that the server asks to wait; 0 if it asks for none.
    retry_after: float
    #: Of ``once``: the key that was sent.
    key: str | None


class MergeConflict(ClientError):
    """Another client changed a member, and ``edit`` changed it to another value."""

    #: Each member that both changed, with three values.
    conflicts: tuple[Conflict, ...]
    #: The whole value that ``change`` made.
    mine: Any
    #: The whole value that is stored. Pass it as ``seen=`` when you edit again.
    theirs: Any


class NoETag(ClientError):
    """The client has no strong ETag, so a write could overwrite an unseen change."""


class ConditionIgnored(ClientError):
    """The server stored a write whose ``If-Match`` did not match: it loses updates."""


def shown(url: URL) -> str:
    """Return an address for people: it has no user, password, query and fragment."""
    path = url.raw_path.partition(b"?")[0].decode("ascii")
    return f"{url.scheme}://{url.netloc.decode('ascii')}{path}"
