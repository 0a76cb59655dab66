"""Messages, drafts and receipts; and the checks of a queue's arguments.

A receipt is text that names one delivery of one message. With it a program may delete the message,
or keep it for longer. Like the body, it is in no ``repr``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from optilock.errors import ConfigurationError, describe
from optilock.queue.errors import MessageTooLarge
from optilock.serialize import limit_exceeded_by
from optilock.tables.queue import LONGEST

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
    #: ``id`` is that of an earlier message with the same deduplication key.
    duplicate: bool = False
    group: str | None = None
    dedup: str | None = None
    receives: int = 0


@dataclass(frozen=True)
class Unreadable:
    """The content of a message that is not JSON as this library reads it.

    Another program has written it, or a restore has cut it. It is the ``body`` of such a message
    in ``peek`` and in the dead letters; no other receive returns one.
    """

    #: Why it cannot be read.
    reason: str
    #: The stored text of the body, with escapes for bytes that are not UTF-8.
    body: str = field(repr=False)
    #: The stored text of the headers, if they cannot be read.
    headers: str | None = field(default=None, repr=False)


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
    #: Until then no other receiver gets it; ``None`` for a message that was only looked at.
    visible_at: datetime | None = field(repr=False)
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    group: str | None = None
    dedup: str | None = None
    #: Why the delivery before failed.
    last_error: str | None = field(default=None, repr=False)


class Received(list[Message]):
    """The messages of one receive.

    ``expired`` are the ids of messages in ``done=`` that were not deleted, because another receiver
    has them.
    """

    def __init__(self, messages: Iterable[Message] = (), expired: Iterable[int] = ()) -> None:
        super().__init__(messages)
        self.expired = tuple(expired)


@dataclass(frozen=True)
class Metrics:
    """The numbers of messages of a queue."""

    #: Messages that can be received now.
    waiting: int
    #: Messages that were received and not ended, or that are delayed.
    hidden: int
    #: Dead letters.
    dead: int
    #: Seconds since the first of the waiting messages became visible.
    oldest: float
    #: ``False``: a number that reaches the limit of counting stands for "so many, or more".
    exact: bool
    #: Rows that only keep the deduplication key of a deleted message, until a receive removes them.
    keys: int = 0


def build(kind: type[T], **values: Any) -> T:
    """Return an object with all of its fields, in half the time of a frozen dataclass."""
    made = object.__new__(kind)
    vars(made).update(values)
    return made


def receipt_of(number: int, token: UUID) -> str:
    return f"{number}{tail_of(token)}"


def tail_of(token: UUID) -> str:
    """Return the common end of all receipts of one send, or one receive."""
    return f".{token.hex}"


def token_of(number: object, receipt: object) -> UUID | None:
    """Return the token of a receipt; ``None`` if it is not one of that message."""
    if not isinstance(receipt, str) or len(receipt) > 60:
        return None
    head, _, tail = receipt.partition(".")
    if head != str(number) or len(tail) != 32:
        return None
    try:
        return UUID(hex=tail)
    except ValueError:
        return None


# -- arguments, checked before a statement is sent -------------------------------------------------

#: Seconds, or a ``timedelta``.
Duration = float | timedelta

_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
WEEK = 7 * 24 * 3600.0
_YEARS = 100 * 366 * 24 * 3600.0
#: The most messages of one receive.
MOST = 1_000


@dataclass(frozen=True)
class Limits:
    """The options of a queue: defaults and limits of its calls."""

    #: Milliseconds.
    visibility: int
    ttl: int | None
    max_receives: int | None
    dead_letters: str
    dedup_window: int
    max_bytes: int


def milliseconds(name: str, value: object, *, least: float = 0, most: float = WEEK) -> int:
    """Return the milliseconds of a duration.

    Raises:
        ConfigurationError: it is not a duration, or out of range.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ConfigurationError(
            f"{name} takes seconds or a timedelta, not an object of {type(value).__name__}."
        )
    if not least <= seconds <= most:  # also for NaN
        raise ConfigurationError(
            f"{name}={seconds!r} is out of range: it goes from {least:g} to {most:g} seconds."
        )
    return round(seconds * 1000)


def lifetime(value: object) -> int | None:
    """Return the milliseconds of a message's life; ``None`` if it does not expire."""
    return None if value is None else milliseconds("ttl", value, least=0.001, most=_YEARS)


def check_count(name: str, value: object, *, most: int = MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{name} takes a whole number from 1 to {most}.")
    return value


def check_id(value: object) -> int:
    """Return the id of a message."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ConfigurationError(
            f"This takes the id of a message, as message.id has it, not {describe(value)}."
        )
    return value


def check_text(name: str, value: object, *, empty: bool = False) -> str:
    """Return the name of a queue, a tenant or a group, or a deduplication key."""
    good = isinstance(value, str) and len(value) <= LONGEST and "\0" not in value
    if not good or not (value or empty) or not _is_text(value):
        raise ConfigurationError(
            f"{name} takes a text of 1 to {LONGEST} characters without NUL, not an object of"
            f" {type(value).__name__} like this."
        )
    assert isinstance(value, str)
    return value


def dead_letters_of(name: str, given: str | None) -> str:
    """Return the name of the queue for messages that were received too often."""
    if given:
        return check_text("dead_letters", given)
    dead = f"{name}.dead"
    if len(dead) > LONGEST:
        raise ConfigurationError(
            f"The name of the queue has {len(name)} characters, and that of its dead letters would"
            f" be longer than {LONGEST}: take a shorter one, or name that queue yourself,"
            " dead_letters=."
        )
    return dead


def _is_text(value: Any) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def json_text(name: str, value: object, max_bytes: int) -> str:
    """Return the value as JSON.

    Raises:
        ConfigurationError: JSON cannot express the value.
        MessageTooLarge: it is too long. The value is not repeated.
    """
    try:
        text = _JSON(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"The {name} of a message is JSON: dicts with text as keys, lists, text, finite"
            f" numbers, true, false and None. This one cannot be written ({type(error).__name__})."
        ) from None
    if limit := limit_exceeded_by(text):
        raise ConfigurationError(
            f"The {name} of a message must be JSON that every receiver can read, and this one"
            f" cannot be sent: {limit}. Store it elsewhere and send its key. Nothing was sent."
        )
    if len(text) > max_bytes:
        raise MessageTooLarge(
            f"The {name} of a message has {len(text):,} bytes as JSON, and the queue takes"
            f" {max_bytes:,}. Store it elsewhere and send its key, or give the queue max_bytes=."
        )
    return text


def headers_text(value: object, max_bytes: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError("headers takes a mapping with text as keys.")
    return json_text("headers", dict(value), max_bytes) if value else None


def require_receipts(messages: Sequence[Any]) -> Sequence[Any]:
    for message in messages:
        if not isinstance(message, (Message, Sent)):
            raise ConfigurationError(
                f"This takes messages as they were received or sent, not {describe(message)}."
            )
        if message.receipt is None:
            raise ConfigurationError(
                f"The message {message.id} has no receipt: it was only looked at, or it is a"
                " duplicate. Receive it first."
            )
    return messages
