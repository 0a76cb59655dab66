"""What the other transaction of a conflict writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from optilock.errors import OptilockError
from optilock.statements import touch

__all__ = ["Change", "apply"]


@dataclass(frozen=True)
class Change:
    """A row, and the values that it gets; where none is new, its version moves."""

    cls: type[Any]
    key: Any
    values: Mapping[str, object]


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
