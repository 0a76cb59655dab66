"""The writes of the other transaction in a conflict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError, NoInspectionAvailable
from sqlalchemy.orm import Mapper, Session

from optilock.errors import ConfigurationError, OptilockError
from optilock.statements import touch

__all__ = ["Change", "apply", "change_of", "mapper_of"]


@dataclass(frozen=True)
class Change:
    """A row, and the values that it gets; where none is new, its version moves."""

    cls: type[Any]
    key: Any
    values: Mapping[str, object]


def change_of(call: str, cls: type[Any], key: object, values: Mapping[str, object]) -> Change:
    """Return the change; ``call`` is how messages name what the test has written.

    Raises ``ConfigurationError`` for a class that is not mapped, or has no such attribute.
    """
    mapper = mapper_of(call, cls)
    unknown = sorted(name for name in values if name not in mapper.attrs)
    if unknown:
        raise ConfigurationError(f"{call}: {cls.__name__} has no attribute {unknown[0]!r}.")
    return Change(cls, key, values)


def mapper_of(call: str, cls: object) -> Mapper[Any]:
    """Return the mapper of a class.

    Raises ``ConfigurationError`` for a class that is not mapped.
    """
    try:
        found = inspect(cls)
    except NoInspectionAvailable:
        found = None
    if not isinstance(found, Mapper):
        raise ConfigurationError(f"{call}: pass a mapped class, and the primary key of its row.")
    return found


def apply(session: Session, change: Change) -> None:
    """Change the row and commit.

    Raises ``OptilockError`` when there is no such row, or another transaction has locked it.
    """
    try:
        with session.begin():
            row = session.get(change.cls, change.key, with_for_update={"nowait": True})
            if row is None:
                raise OptilockError("The other transaction finds no such row.")
            for name, value in change.values.items():
                setattr(row, name, value)
            if not session.is_modified(row):
                touch(row)
    except DBAPIError as error:
        raise OptilockError(
            "The other transaction cannot change the row: the transaction under test has locked it"
            " before, so nothing can come between. Let it read the row without a lock, or expect no"
            " conflict."
        ) from error
