"""A kind of token that the library does not have, and that SQL can make as well as Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnDefault, ColumnElement, literal
from sqlalchemy.types import TypeEngine

from optilock.tokens import Token

__all__ = ["Tens"]


@dataclass(frozen=True)
class Tens(Token):
    """10, 20, 30 …"""

    def type(self) -> TypeEngine[Any]:
        return BigInteger()

    def take(self, column: Column[Any]) -> None:
        column.onupdate = ColumnDefault(self.following(column), for_update=True)

    def next(self, value: Any) -> int:
        return 10 if value is None else int(value) + 10

    def first(self) -> ColumnElement[Any]:
        return literal(10)

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any]:
        return old + 10
