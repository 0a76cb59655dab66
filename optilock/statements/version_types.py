"""The versions that a program gives for rows are of the type that their column has.

A version of another type is refused before anything is sent. The database, or its driver, would
say something about types that names no row; or would find no row, which looks like a conflict and
is none; or, where it turns text into numbers as MariaDB does, would find one.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import DateTime
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator, TypeEngine

from optilock.errors import ConfigurationError
from optilock.mapped import facts
from optilock.tokens.row_version import TransactionId
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["ALSO", "VersionType", "kind_of"]

#: Type of the versions as they are read -> what a program may give as well.
ALSO: dict[type, tuple[type, ...]] = {Decimal: (int,), bytes: (bytearray, memoryview)}
#: No database has a whole number beyond.
_LARGEST = 1 << 63


class VersionType:
    """Which versions the rows of a class can have."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._mapper = mapper
        kind = facts(mapper).version.type
        self._type = _python_type(kind)
        self._takes = () if self._type is None else (self._type, *ALSO.get(self._type, ()))
        self._zone = _zone(kind)

    def takes(self, version: Any) -> bool:
        """Is it of the type, and no larger than any number of a database?"""
        if self._type is None:
            return True
        if not isinstance(version, self._takes) or isinstance(version, bool):
            return False
        if isinstance(version, datetime) and self._zone is not None:
            return (version.tzinfo is not None) is self._zone
        return not isinstance(version, int) or -_LARGEST <= version < _LARGEST

    def refused(self, where: str, version: Any) -> ConfigurationError:
        """The error for a version that no row can have; ``where`` names the row it is given for."""
        name, token = self._mapper.class_.__name__, facts(self._mapper).token
        return ConfigurationError(
            f"{where} gives {kind_of(version)} as {token!r}, and the version of {name} is"
            f" {self._words()}: give the version as it was read. Nothing was sent."
        )

    def _words(self) -> str:
        assert self._type is not None
        if self._type is datetime and self._zone is not None:
            return f"a datetime {'with' if self._zone else 'without'} a time zone"
        return f"a value of type {self._type.__name__}" + (" (64 bits)" * (self._type is int))


def _python_type(kind: TypeEngine[Any]) -> type[Any] | None:
    """Of the versions as they are read; ``None``: only a type of the application's own knows."""
    if isinstance(kind, TransactionId):
        return int
    if isinstance(kind, UtcDateTime):
        return datetime
    if isinstance(kind, TypeDecorator):
        return None
    try:
        return kind.python_type
    except NotImplementedError:
        return None


def _zone(kind: TypeEngine[Any]) -> bool | None:
    """Have moments a zone? ``None``: with SQLAlchemy's own type that is up to the database."""
    if isinstance(kind, UtcDateTime):
        return True
    return None if not isinstance(kind, DateTime) or kind.timezone else False


def kind_of(value: object) -> str:
    """The type of a value, in words that tell a time with a zone from one without."""
    if isinstance(value, datetime):
        return f"a datetime {'without' if value.tzinfo is None else 'with'} a time zone"
    return f"a value of type {type(value).__name__}"
