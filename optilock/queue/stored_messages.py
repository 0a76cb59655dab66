"""Stored rows as messages, with any content of their columns.

A row may have been written by another program, or cut by a restore. One that cannot be read is a
message with :class:`~optilock.queue.messages.Unreadable` as its body, so its neighbours are not
affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optilock.queue.messages import Message, Unreadable, build
from optilock.serialize import read_json
from optilock.tokens.sql_functions import in_utc


def message_of(row: Any, tail: str | None) -> Message:
    """Return a row as a message. ``tail`` ends the receipts of all messages of the receive."""
    number, body, headers, sent_at, expires_at, visible_at, receives, group, dedup, error, *_ = row
    value, named = _content_of(body, headers)
    return build(
        Message,
        id=number,
        body=value,
        receipt=None if tail is None else f"{number}{tail}",
        receives=receives,
        sent_at=in_utc(sent_at),
        expires_at=None if expires_at is None else in_utc(expires_at),
        visible_at=None if tail is None else in_utc(visible_at),
        headers=named,
        group=group,
        dedup=dedup,
        last_error=_shown(error),
    )


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
