"""Kinds of token that the library does not have: SQL makes one as well as Python, none the other.

Neither says what an UPDATE that has not read the row sets (``take``).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, literal
from sqlalchemy.types import TypeEngine

from optilock.tokens import Token

__all__ = ["Random64", "Tens"]


@dataclass(frozen=True)
class Tens(Token):
    """10, 20, 30 …"""

    def type(self) -> TypeEngine[Any]:
        return BigInteger()

    def next(self, value: Any) -> int:
        return 10 if value is None else int(value) + 10

    def first(self) -> ColumnElement[Any]:
        return literal(10)

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any]:
        return old + 10


@dataclass(frozen=True)
class Random64(Token):
    """A random number of 62 bits."""

    def type(self) -> TypeEngine[Any]:
        return BigInteger()

    def next(self, value: Any) -> int:
        return secrets.randbits(62)
