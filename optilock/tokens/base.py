"""What every token with a column can do."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Column, ColumnElement
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
        default: Any = {}
        if self.generator is not False:
            default = {"default": lambda: self.next(None)}  # for insert(), which asks no mapper
        return Column(
            self.column or self.name, self.type(), key=self.name, nullable=False, **default
        )

    def type(self) -> TypeEngine[Any]:
        """The column's type."""
        raise NotImplementedError  # every kind says its own

    def accepts(self, column: Column[Any]) -> bool:
        """Can this token live in a column that the class has declared itself?"""
        return isinstance(column.type, type(self.type()))

    def take(self, column: Column[Any]) -> None:
        """Make ``column``, new or declared by the class, this token's: what INSERT and UPDATE say.

        Raises ``ConfigurationError`` for a column that says something else.
        """

    @property
    def generator(self) -> Callable[[Any], Any] | Literal[False]:
        """Who makes the next version: Python, or (``False``) the database or the application."""
        return self.next

    def next(self, value: Any) -> Any:
        """The value that follows ``value``; the first one for ``None``."""
        raise NotImplementedError  # every kind says its own

    def again(self, value: Any) -> Any:
        """The version of a row that is made again after ``value``; ``None``: as any new row's."""
        return None

    def touch(self, column: Column[Any]) -> Mapping[Column[Any], ColumnElement[Any]]:
        """What an UPDATE sets for the database to move the version though nothing else changes.

        Empty where Python makes the version, or the application does.
        """
        return {}
