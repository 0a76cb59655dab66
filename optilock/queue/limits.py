"""What may be given to a queue; everything else is refused before a statement is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from optilock.errors import ConfigurationError
from optilock.queue.errors import MessageTooLarge
from optilock.tables.queue import LONGEST

__all__ = ["MOST", "Duration", "Limits", "count", "json_text", "milliseconds", "word"]

#: Seconds, or a ``timedelta``.
Duration = float | timedelta

_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
WEEK = 7 * 24 * 3600.0
_YEARS = 100 * 366 * 24 * 3600.0
#: The most messages of one receive.
MOST = 1_000


@dataclass(frozen=True)
class Limits:
    """What a queue does where a call does not say."""

    #: Milliseconds.
    visibility: int
    ttl: int | None
    max_receives: int | None
    dead_letters: str
    dedup_window: int
    max_bytes: int


def milliseconds(name: str, value: object, *, least: float = 0, most: float = WEEK) -> int:
    """A length of time.

    Raises:
        ConfigurationError: it is none, or out of range.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ConfigurationError(
            f"{name} takes seconds or a timedelta, not an object of {type(value).__name__}."
        )
    if not least <= seconds <= most:  # NaN is nowhere
        raise ConfigurationError(
            f"{name}={seconds!r} is out of range: it goes from {least:g} to {most:g} seconds."
        )
    return round(seconds * 1000)


def ttl(value: object) -> int | None:
    """How long a message lives; ``None``: for ever."""
    return None if value is None else milliseconds("ttl", value, least=0.001, most=_YEARS)


def count(name: str, value: object, *, most: int = MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{name} takes a whole number from 1 to {most}.")
    return value


def word(name: str, value: object, *, empty: bool = False) -> str:
    """The name of a queue, a tenant, a group, or a deduplication key."""
    good = isinstance(value, str) and len(value) <= LONGEST and "\0" not in value
    if not good or not (value or empty) or not _is_text(value):
        raise ConfigurationError(
            f"{name} takes a text of 1 to {LONGEST} characters without NUL, not an object of"
            f" {type(value).__name__} like this."
        )
    assert isinstance(value, str)
    return value


def _is_text(value: Any) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def json_text(name: str, value: object, max_bytes: int) -> str:
    """The value as JSON.

    Raises:
        ConfigurationError: JSON has no such value.
        MessageTooLarge: it is too long. The value is not repeated.
    """
    try:
        text = _JSON(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"The {name} of a message is JSON: dicts with text as keys, lists, text, finite"
            f" numbers, true, false and None. This one cannot be written ({type(error).__name__})."
        ) from None
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
