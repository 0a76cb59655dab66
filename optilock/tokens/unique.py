"""A random value with every write.

A row that was deleted and inserted again never passes for its predecessor, and the value does not
show how often the row was written.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Uuid
from sqlalchemy.types import TypeEngine

from optilock.tokens.base import Token
from optilock.tokens.sql_functions import RandomUuid


@dataclass(frozen=True)
class Unique(Token):
    """A random UUID (version 4, RFC 9562) with every write."""

    option = "unique"
    told_by_type = True

    def type(self) -> TypeEngine[Any]:
        return Uuid()

    def accepts(self, column: Column[Any]) -> bool:
        return isinstance(column.type, Uuid) and column.type.as_uuid

    def next(self, value: Any) -> uuid.UUID:
        return uuid.uuid4()

    def drawn(self, bits: bytes) -> uuid.UUID:
        """With the marks of version 4, as the random ones have them."""
        return uuid.UUID(bytes=bits[:16], version=4)

    def first(self) -> ColumnElement[Any]:
        return RandomUuid()

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any]:
        return RandomUuid()
