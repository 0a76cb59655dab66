"""Stored rows as messages, with any content of their columns.

A row may have been written by another program, or cut by a restore. One that cannot be read is a
message with :class:`~optilock.queue.messages.Unreadable` as its body, so its neighbours are not
affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from optilock.queue.messages import Message, Unreadable, build
from optilock.serialize import read_json
from optilock.tokens.sql_functions import in_utc

#: In place of a time that cannot be read.
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def message_of(row: Any, tail: str | None) -> Message:
    """Return a row as a message. ``tail`` ends the receipts of all messages of the receive."""
    number, body, headers, sent_at, expires_at, visible_at, receives, group, dedup, error, *_ = row
    value, named = _content_of(body, headers)
    try:
        sent, expires = time_of(sent_at), time_of(expires_at)
        if sent is None:
            raise ValueError("it has no time at which it was sent")
    except ValueError as why:
        sent, expires = _BEGINNING, None
        value = Unreadable(f"The times cannot be read: {why}.", _shown(body))
    return build(
        Message,
        id=number,
        body=value,
        receipt=None if tail is None else f"{number}{tail}",
        receives=receives,
        sent_at=sent,
        expires_at=expires,
        visible_at=None if tail is None else time_of(visible_at),
        headers=named,
        group=group,
        dedup=dedup,
        last_error=_shown(error),
    )


def time_of(value: Any) -> datetime | None:
    """Return a stored time.

    Raises:
        ValueError: it is not one.
    """
    if isinstance(value, bytes):
        value = datetime.fromisoformat(value.decode())
    return None if value is None else in_utc(value)


def _content_of(body: Any, headers: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the body, or why it cannot be read, and the headers."""
    try:
        named = _headers_of(headers)
    except ValueError as error:
        why = f"The headers cannot be read: {error}."
        return Unreadable(why, _shown(body), _shown(headers)), {}
    try:
        return read_json(body), named
    except ValueError as error:
        return Unreadable(f"The body cannot be read: {error}.", _shown(body)), named


def _headers_of(text: str | bytes | None) -> dict[str, Any]:
    headers = read_json(text) if text else {}
    if not isinstance(headers, dict):
        raise ValueError("they are not a JSON object")
    return headers


def _shown(text: Any) -> Any:
    """Return a stored text as a text, with escapes for bytes that are not UTF-8."""
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
