"""A number that grows by one with every write.

The smallest and most readable token. One thing it cannot see: a row that is deleted and inserted
again starts at 1 again, and after as many writes it carries the number of its predecessor. Use
:class:`~optilock.tokens.unique.Unique` where keys are used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Integer, literal
from sqlalchemy.types import TypeEngine

from optilock.tokens.base import Token


@dataclass(frozen=True)
class Counter(Token):
    """1, 2, 3 …: a 64-bit integer that grows by one with every UPDATE of the row."""

    predictable = True
    option = "counter"
    told_by_type = True

    def type(self) -> TypeEngine[Any]:
        return BigInteger()

    def accepts(self, column: Column[Any]) -> bool:
        return isinstance(column.type, Integer)

    @property
    def counts(self) -> bool:
        return True

    def next(self, value: Any) -> int:
        return 1 if value is None else int(value) + 1

    def first(self) -> ColumnElement[Any]:
        return literal(1)

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any]:
        return old + 1
