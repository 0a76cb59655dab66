"""Tags that a client may hold: ``tag(Account, 1, 3)`` is that of version 3 of the account 1."""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect

from optilock.preconditions.entity_tags import PLAIN

__all__ = ["tag", "version_text"]


def tag(model: type[Any], key: Any, version: Any) -> str:
    identity = key if isinstance(key, tuple) else (key,)
    return PLAIN.tag(inspect(model), identity, version)


def version_text(etag: str) -> str:
    """What a tag tells of the version: the text after the point."""
    return etag[1:-1].partition(".")[2]
