"""A version that the application moves.

::

    class Contract(Versioned, Base):
        __version_token__ = Manual(Uuid())
        ...

    contract = Contract(version=uuid4(), text="...")
    contract.version, contract.text = uuid4(), "..."      # an edit that counts
    contract.printed = True                               # one that does not

Every UPDATE and DELETE compares the version that was read, also one that leaves it as it is. It
moves only when the application assigns another: a change of a row without that leaves other
writers' versions valid. Two different writes must never have the same version; random values, or
those of another system's rows, are safe, and counting in Python is not (two writers count to the
same number): that is what ``Counter`` is for.

It is the caller's business from the first INSERT on: one without a version is refused, unless the
column is declared with a default. ``Manual()`` without a type takes the declared column as it is.

Text that differs in case only is another version. Most collations of MariaDB say that it is the
same, so the column that ``Manual(String(40))`` makes there is binary (``utf8mb4_bin``). One that
the class declares, or that is in the database already, needs such a collation as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import TEXT, VARCHAR, Column, String, Text, Unicode, UnicodeText
from sqlalchemy.exc import ArgumentError
from sqlalchemy.types import TypeEngine, to_instance

from optilock.errors import ConfigurationError
from optilock.tokens.base import Token

_BINARY = "utf8mb4_bin"


@dataclass(frozen=True, init=False)
class Manual(Token):
    """A version of any type, checked by every write and moved only by assignment."""

    column_type: TypeEngine[Any] | None = None
    made_by = "application"

    def __init__(self, type: Any = None, *, name: str = "version", column: str | None = None):
        """``type`` is that of the column; leave it out where the class declares the column.

        Raises ``ConfigurationError`` unless it is a type of SQLAlchemy.
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
                f"Manual() knows no type for the column {self.column_name!r}: say which,"
                " for example Manual(Uuid()), or declare the column in the class."
            )
        return _telling_case(self.column_type)

    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The type by position, by which it is given."""
        _, named = super().arguments()
        kind = () if self.column_type is None else (self.column_type,)
        return kind, {name: value for name, value in named.items() if name != "column_type"}

    def accepts(self, column: Column[Any]) -> bool:
        """The application knows what it assigns."""
        return True


def _telling_case(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type, in a case-sensitive collation of MariaDB."""
    if type(kind) in (String, Unicode) and isinstance(kind, String) and kind.length:
        binary: TypeEngine[Any] = VARCHAR(kind.length, collation=_BINARY)
    elif type(kind) in (Text, UnicodeText):
        binary = TEXT(collation=_BINARY)
    else:
        return kind
    if getattr(kind, "collation", None):
        return kind
    try:
        return kind.with_variant(binary, "mysql", "mariadb")
    except ArgumentError:  # the application has chosen one already
        return kind
