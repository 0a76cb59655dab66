"""Resolvers: what to do with a row that somebody else changed first.

(skeleton: ``Resolution`` is the contract between resolvers and the guard)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from optilock.entry import Entry

__all__ = ["Resolution", "Resolver"]


@dataclass(frozen=True)
class Resolution:
    """What a resolver decided about one entry."""

    decision: Literal["write", "overwrite", "keep_database", "reject"]
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def write(cls, values: Mapping[str, Any] | None = None) -> Resolution:
        """These attributes get these values; all others come from the side that changed them."""
        return cls("write", MappingProxyType(dict(values or {})))

    @classmethod
    def overwrite(cls) -> Resolution:
        """Do what was tried: our changed columns over theirs, our delete, or the row inserted again."""
        return cls("overwrite")

    @classmethod
    def keep_database(cls) -> Resolution:
        """Drop our edits and take what is stored."""
        return cls("keep_database")

    @classmethod
    def reject(cls) -> Resolution:
        """Let the conflict out as a ``ConcurrencyError``."""
        return cls("reject")


Resolver = Callable[[Entry[Any]], Resolution | Awaitable[Resolution]]
