"""What goes into a queue, and what comes out of it: values.

A receipt is text that names one delivery of one message: whoever has it may delete the message, or
keep it for longer. Like the body, it is in no ``repr``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

__all__ = [
    "Draft",
    "Message",
    "Metrics",
    "Received",
    "Sent",
    "filled",
    "receipt_of",
    "tail_of",
    "token_of",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Draft:
    """A message to be sent, for ``send_many``; the options are those of ``send``."""

    body: Any = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __init__(self, body: Any, **options: Any) -> None:
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "options", options)


@dataclass(frozen=True)
class Sent:
    """A message that was sent. Until it is first received, its receipt is good for a delete."""

    id: int
    receipt: str | None = field(repr=False)
    #: There is a message with this deduplication key already, and ``id`` is that one's.
    duplicate: bool = False
    group: str | None = None
    dedup: str | None = None
    receives: int = 0


@dataclass(frozen=True)
class Message:
    """A message as it was received, or seen by ``peek``."""

    #: The same in every delivery, and never used for another message: by it you know what you did.
    id: int
    body: Any = field(repr=False)
    #: ``None`` for a message that was only looked at.
    receipt: str | None = field(repr=False)
    #: How often it was received, this time included.
    receives: int
    sent_at: datetime = field(repr=False)
    expires_at: datetime | None = field(repr=False)
    #: Until then nobody else receives it; ``None`` for a message that was only looked at.
    visible_at: datetime | None = field(repr=False)
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    group: str | None = None
    dedup: str | None = None
    #: Why the delivery before failed.
    last_error: str | None = field(default=None, repr=False)


class Received(list[Message]):
    """The messages of one receive.

    ``expired`` are the ids of those in ``done=`` that were not deleted, because they are somebody
    else's by now.
    """

    def __init__(self, messages: Iterable[Message] = (), expired: Iterable[int] = ()) -> None:
        super().__init__(messages)
        self.expired = tuple(expired)


@dataclass(frozen=True)
class Metrics:
    """How a queue is doing."""

    #: Messages that can be received now.
    waiting: int
    #: Those that somebody has received, or that are delayed.
    hidden: int
    #: Dead letters.
    dead: int
    #: Seconds for which the first of those waiting has been waiting.
    oldest: float
    #: Are the numbers exact, or is each one that is reached a "so many, or more"?
    exact: bool


def filled(kind: type[T], **values: Any) -> T:
    """One with all of its fields, in half the time: a frozen one sets them one after the other."""
    made = object.__new__(kind)
    vars(made).update(values)
    return made


def receipt_of(number: int, token: UUID) -> str:
    return f"{number}{tail_of(token)}"


def tail_of(token: UUID) -> str:
    """What the receipts of all end with that were sent, or received, together."""
    return f".{token.hex}"


def token_of(number: object, receipt: object) -> UUID | None:
    """What stands in the database for this receipt; ``None``: it is none of that message's."""
    if not isinstance(receipt, str) or len(receipt) > 60:
        return None
    head, _, tail = receipt.partition(".")
    if head != str(number) or len(tail) != 32:
        return None
    try:
        return UUID(hex=tail)
    except ValueError:
        return None
