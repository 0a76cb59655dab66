"""What every token with a column can do, and what a kind of token says of itself.

A kind is a frozen dataclass in a file of its own. Elsewhere nobody asks which kind a token is: who
makes its versions, what SQL makes them, whether a table has the column anyway, all that the token
tells itself. So a new kind is one new file; ``docs/tokens.md`` has an example.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

from sqlalchemy import Column, ColumnElement, literal_column
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError

__all__ = ["Maker", "Token", "kinds"]

#: Who makes the next version: Python from the one before (``next``) or from the values of the row
#: (``make``), the database, or the application, which assigns it.
Maker = Literal["python", "values", "database", "application"]

#: What a declarative class uses itself.
_TAKEN = ("metadata", "registry")


@dataclass(frozen=True)
class Token:
    """A concurrency token that lives in a column of its own.

    ``name`` is the attribute on the class and, unless ``column`` says otherwise, the column.
    """

    made_by: ClassVar[Maker] = "python"
    #: Does the database move the version at every write, whatever changes?
    every_write: ClassVar[bool] = False
    #: Does ``next`` give the same each time, so that what a statement has made need not be read?
    predictable: ClassVar[bool] = False

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

    @property
    def column_name(self) -> str:
        """The name of the column."""
        return self.column or self.name

    @classmethod
    def in_column(cls, column: str) -> Self:
        """The token of this kind in a column of that name, by which the attribute is called too."""
        return cls(name=column) if column.isidentifier() else cls(column=column)

    def new_column(self) -> Column[Any]:
        """The column to add to a table that has none yet.

        Without a server default: SQLAlchemy takes one for a sign that the database makes the
        versions, and asks for every new one with RETURNING.
        """
        default: Any = {}
        if self.made_by == "python":
            default = {"default": lambda: self.next(None)}  # for insert(), which asks no mapper
        return Column(self.column_name, self.type(), key=self.name, nullable=False, **default)

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

    def _alone(self, column: Column[Any], what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{column} has {what}= beside {type(self).__name__}(): only one can make the versions."
            f" Remove {what}=."
        )

    # -- who makes the versions ----------------------------------------------------------------

    @property
    def generator(self) -> Callable[[Any], Any] | Literal[False]:
        """What makes the next version from the one before; ``False`` where nothing of ours does."""
        return self.next if self.made_by == "python" else False

    def next(self, value: Any) -> Any:
        """The value that follows ``value``; the first one for ``None``."""
        raise NotImplementedError  # said by every kind whose versions Python makes

    @property
    def reads(self) -> tuple[str, ...]:
        """The attributes that :meth:`make` is given, as far as a class has them."""
        return ()

    def make(self, values: Mapping[str, Any]) -> Any:
        """The version of a row with these values of the attributes that the token ``reads``."""
        raise NotImplementedError  # said by every kind that is made from values

    def again(self, value: Any) -> Any:
        """The version of a row that is made again after ``value``; ``None``: as any new row's."""
        return None

    @property
    def touchable(self) -> bool:
        """Can the version be moved though nothing of the row changes?"""
        return self.made_by in ("python", "database")

    def touch(self, column: Column[Any]) -> Mapping[Column[Any], ColumnElement[Any]]:
        """What an UPDATE sets for the database to move the version though nothing else changes.

        Empty where Python makes the version, or the application does.
        """
        following = self.following(column) if self.made_by == "database" else None
        return {} if following is None else {column: following}

    def drawn(self, bits: bytes) -> Any:
        """The version that these 32 bytes make, which stand in the place of chance.

        ``None``: chance makes no versions of this kind, so nothing can be known by them again.
        """
        return None

    # -- in the database -----------------------------------------------------------------------

    @property
    def has_trigger(self) -> bool:
        """Does a trigger of its own make the versions?"""
        return False

    @property
    def is_system(self) -> bool:
        """Is it a column that every table has, so that nobody adds, fills or drops it?"""
        return False

    def first(self) -> ColumnElement[Any] | None:
        """SQL of the version of a row that never had one; ``None`` where only others know it."""
        return None

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any] | None:
        """SQL of the version after ``old``, for a guard trigger; ``None``: it can make none."""
        return None

    @property
    def can_be_guarded(self) -> bool:
        """Can a guard trigger move the version?"""
        return self.following(literal_column("old")) is not None

    # -- in a migration ------------------------------------------------------------------------

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """What makes an equal token: arguments by position, and by name; without the defaults."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        usual = {one.name: one.default for one in fields(self)}
        return (), {name: value for name, value in given.items() if value != usual[name]}


def kinds(parent: type[Token] = Token) -> Iterator[type[Token]]:
    """All kinds of token that there are."""
    for kind in parent.__subclasses__():
        yield kind
        yield from kinds(kind)
