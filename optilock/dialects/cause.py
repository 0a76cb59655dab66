"""Why a database ended a statement or a transaction, in one word for every engine."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

__all__ = ["Cause", "error_chain", "raised_by"]


class Cause(Enum):
    """What a driver's error says about the transaction it came from."""

    #: The change that another transaction committed ended ours: it read what is no longer true.
    CONFLICT = "conflict"
    #: Transactions waited for each other, and ours was chosen to give way.
    DEADLOCK = "deadlock"
    #: Somebody else held the lock for longer than we were willing to wait.
    LOCK_TIMEOUT = "lock timeout"
    #: There is no connection any more. Before COMMIT was sent that is a rollback.
    CONNECTION_LOST = "connection lost"
    #: The database itself says that it does not know whether the work is stored.
    UNKNOWN_OUTCOME = "unknown outcome"
    #: Anything else: running the same work again would end the same way.
    OTHER = "other"


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """The driver's error and what it was raised from.

    SQLAlchemy's async adapters raise an error of their own ``from`` the driver's.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


def raised_by(error: BaseException, drivers: tuple[str, ...]) -> bool:
    """Does one of these packages define the error's class, or a class it is derived from?"""
    return any(
        kind.__module__ == driver or kind.__module__.startswith(driver + ".")
        for kind in type(error).__mro__
        for driver in drivers
    )
