"""A version that the application moves.

::

    class Contract(Versioned, Base):
        __version_token__ = Manual(Uuid())
        ...

    contract = Contract(version=uuid4(), text="...")
    contract.version, contract.text = uuid4(), "..."      # an edit that counts
    contract.printed = True                               # one that does not

Every UPDATE and DELETE compares the version that was read, also one that leaves it as it is. It
moves only when the application assigns another: whoever changes a row without doing so leaves other
writers' versions good. Two different writes must never have the same version; random values, or
those of another system's rows, are safe, and counting in Python is not (two writers count to the
same number): that is what ``Counter`` is for.

It is the caller's business from the first INSERT on: one without a version is refused, unless the
column is declared with a default. ``Manual()`` without a type takes the declared column as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column
from sqlalchemy.types import TypeEngine, to_instance

from optilock.errors import ConfigurationError
from optilock.tokens.base import Token

__all__ = ["Manual"]


@dataclass(frozen=True, init=False)
class Manual(Token):
    """A version of any type, checked by every write and moved only by assignment."""

    column_type: TypeEngine[Any] | None = None
    generator = False

    def __init__(self, type: Any = None, *, name: str = "version", column: str | None = None):
        """``type`` is that of the column; leave it out where the class declares the column.

        Raises ``ConfigurationError`` for what is not a type of SQLAlchemy.
        """
        if type is not None:
            made = to_instance(type) if callable(type) else type
            if not isinstance(made, TypeEngine):
                raise ConfigurationError(
                    f"Manual({type!r}): the first argument is the column's type, for example"
                    " Manual(Uuid()) or Manual(String(40))."
                )
            object.__setattr__(self, "column_type", made)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "column", column)
        self.__post_init__()

    def type(self) -> TypeEngine[Any]:
        if self.column_type is None:
            raise ConfigurationError(
                f"Manual() knows no type for the column {self.column or self.name!r}: say which,"
                " for example Manual(Uuid()), or declare the column in the class."
            )
        return self.column_type

    def accepts(self, column: Column[Any]) -> bool:
        """The application knows what it assigns."""
        return True
