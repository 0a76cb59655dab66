"""What every token with a column can do."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError

__all__ = ["Token"]

#: What a declarative class uses itself.
_TAKEN = ("metadata", "registry")


@dataclass(frozen=True)
class Token:
    """A concurrency token that lives in a column of its own.

    ``name`` is the attribute on the class and, unless ``column`` says otherwise, the column.
    """

    name: str = "version"
    column: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("column", self.column)):
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(
                    f"{type(self).__name__}({what}={value!r}): {what} is the text of a column"
                    " name, for example 'version'."
                )
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ConfigurationError(
                f"{type(self).__name__}(name={self.name!r}): the attribute must be a Python"
                f" identifier; write name='version', column={self.name!r} instead."
            )
        if self.name in _TAKEN or self.name.startswith("__"):
            raise ConfigurationError(
                f"{type(self).__name__}(name={self.name!r}): SQLAlchemy's declarative classes have"
                f" that name already; write name='version', column={self.name!r} instead."
            )

    def new_column(self) -> Column[Any]:
        """The column to add to a table that has none yet.

        Without a server default: SQLAlchemy takes one for a sign that the database makes the
        versions, and asks for every new one with RETURNING.
        """
        return Column(
            self.column or self.name,
            self.type(),
            key=self.name,
            nullable=False,
            default=lambda: self.next(None),  # for insert(), which asks no mapper
        )

    def type(self) -> TypeEngine[Any]:
        """The column's type."""
        raise NotImplementedError  # every kind says its own

    def accepts(self, column: Column[Any]) -> bool:
        """Can this token live in a column that the class has declared itself?"""
        return isinstance(column.type, type(self.type()))

    def next(self, value: Any) -> Any:
        """The value that follows ``value``; the first one for ``None``."""
        raise NotImplementedError  # every kind says its own
