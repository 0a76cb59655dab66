"""The class of all tokens with a column, which each kind overrides.

A kind is a frozen dataclass in a file of its own. Other modules never ask which kind a token is.
Its class declares the maker of the versions, their SQL, the name for ``--token``, and so on. So a
new kind is one new file, and subclassing registers it; ``docs/how-to/models/tokens.md`` has an
example.
"""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

from sqlalchemy import Column, ColumnDefault, ColumnElement, Integer, literal_column
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.types import TypeEngine

from optilock.errors import ConfigurationError

#: Who makes the next version: Python from the one before (``next``) or from the values of the row
#: (``make``), the database, or the application, which assigns it.
Maker = Literal["python", "values", "database", "application"]

#: Names that a declarative class uses itself.
_TAKEN = ("metadata", "registry")


@dataclass(frozen=True)
class Token:
    """A concurrency token that lives in a column of its own.

    ``name`` is the attribute on the class and, without ``column``, also the column.
    """

    made_by: ClassVar[Maker] = "python"
    #: Whether the database moves the version at every write.
    every_write: ClassVar[bool] = False
    #: Whether ``next`` returns the same each time, so a statement's version need not be read.
    predictable: ClassVar[bool] = False
    #: What ``optilock migrate --token`` calls it; without one, ``module:Kind`` will do.
    option: ClassVar[str | None] = None
    #: Whether a NOT NULL column of its type is probably one of its own, for autogenerate.
    told_by_type: ClassVar[bool] = False

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
        raise NotImplementedError  # every kind has its own

    def accepts(self, column: Column[Any]) -> bool:
        """Return whether this token can use a column that the class has declared itself."""
        return isinstance(column.type, type(self.type()))

    def take(self, column: Column[Any]) -> None:
        """Make ``column``, new or declared by the class, this token's: what INSERT and UPDATE say.

        Any UPDATE of the table that does not name the version moves it (``update()``), also one
        that a plain session sends, or Core.

        Raises ``ConfigurationError`` for a column with another declaration, and where nothing would
        move the version.
        """
        if self.made_by == "python" and column.onupdate is None:
            column.onupdate = ColumnDefault(self._at_update(column), for_update=True)
        elif self.made_by == "database" and not (self.has_trigger or self.is_system):
            self._let_sql_move(column)

    def _at_update(self, column: Column[Any]) -> Any:
        """Return the new version for an UPDATE that has not read the row."""
        following = self.following(column)
        if following is not None:
            return following
        if isinstance(column.type, Integer) and _counts(self.next):
            return column + 1
        return lambda: self.anew()

    def _let_sql_move(self, column: Column[Any]) -> None:
        following = self.following(column)
        if following is None and column.onupdate is None and column.server_onupdate is None:
            kind = type(self).__name__
            raise ConfigurationError(
                f"The versions of {kind}() are the database's, and {column.name!r} has no SQL that"
                f" moves it: give {kind} a following(), which returns SQL, or a take() that sets"
                " server_onupdate=FetchedValue() on a column which a trigger moves."
            )
        for what, element in (("default", self.first()), ("onupdate", following)):
            if element is not None and getattr(column, what) is None:
                made = ColumnDefault(element, for_update=what == "onupdate")
                setattr(column, what, made)

    def _alone(self, column: Column[Any], what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{column} has {what}= beside {type(self).__name__}(): only one can make the versions."
            f" Remove {what}=."
        )

    # -- who makes the versions ----------------------------------------------------------------

    @property
    def generator(self) -> Callable[[Any], Any] | Literal[False]:
        """The function from one version to the next; ``False`` where Python makes none."""
        return self.next if self.made_by == "python" else False

    def next(self, value: Any) -> Any:
        """The value that follows ``value``; the first one for ``None``."""
        raise NotImplementedError  # every kind whose versions Python makes has its own

    def anew(self) -> Any:
        """Return a version for a row whose own one was not read: a random one, or a time.

        Raises ``ConfigurationError`` where each version is made from the one before.
        """
        if not self.is_made_anew:
            kind = type(self).__name__
            raise _NotMade(
                f"This UPDATE has not read the {self.column_name!r} of its rows, and {kind}() makes"
                f" each version from the one before: name {self.column_name!r} among the values of"
                f" the statement, change the objects, or give {kind} a following(), which returns"
                " SQL. Nothing was sent."
            )
        return self.next(None)

    @property
    def is_made_anew(self) -> bool:
        """Whether a version is made without the one before, at random or from a clock."""
        return not self.predictable and (self.drawn(bytes(32)) is not None or not _depends(self))

    @property
    def counts(self) -> bool:
        """Whether the next version is one more."""
        return self.has_trigger

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

    def touch(self, column: Column[Any]) -> Mapping[Column[Any], ColumnElement[Any]]:
        """Return the values with which an UPDATE moves the version without another change.

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
        """Whether a trigger of the token makes the versions."""
        return False

    @property
    def is_system(self) -> bool:
        """Whether every table has the column, so that it is not added, filled or dropped."""
        return False

    def first(self) -> ColumnElement[Any] | None:
        """SQL of the version of a row that never had one; ``None`` where only others know it."""
        return None

    def following(self, old: ColumnElement[Any]) -> ColumnElement[Any] | None:
        """SQL of the version after ``old``, for a guard trigger; ``None``: it can make none."""
        return None

    @property
    def can_be_guarded(self) -> bool:
        """Whether a guard trigger can move the version."""
        return self.following(literal_column("old")) is not None

    # -- in a migration ------------------------------------------------------------------------

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of an equal token, by position and by name, without the defaults."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        usual = {one.name: one.default for one in fields(self)}
        return (), {name: value for name, value in given.items() if value != usual[name]}


class _NotMade(ConfigurationError, DontWrapMixin):
    """SQLAlchemy would make a ``StatementError`` of it, as it comes while a statement is made."""


def _counts(following: Callable[[Any], Any]) -> bool:
    try:
        return (following(1), following(41)) == (2, 42)
    except Exception:  # another kind of value
        return False


#: As many versions in a row; so many random ones stand in order once in 40,320 times.
_TRIED = 8


@functools.lru_cache(maxsize=64)
def _depends(token: Token) -> bool:
    """Return whether a version is made from the one before it, unlike chance and clocks.

    Versions that are counted grow from one to the next, and a first version that is made after
    them is less than the last.
    """
    following = token.next
    fresh = [following(None) for _ in range(3)]
    if fresh[0] == fresh[1] == fresh[2]:
        return True
    line = [fresh[0]]
    for _ in range(_TRIED):
        line.append(following(line[-1]))
    first = following(None)
    try:
        grows = all(one < after for one, after in pairwise(line))
        shrinks = all(one > after for one, after in pairwise(line))
        return (grows and not first > line[-1]) or (shrinks and not first < line[-1])
    except TypeError:  # they have no order
        return False


def kinds(parent: type[Token] = Token) -> Iterator[type[Token]]:
    """All kinds of token that there are."""
    for kind in parent.__subclasses__():
        yield kind
        yield from kinds(kind)
