"""The retry loop of those who have none: the waits are those of optilock's ``retry``.

A loop that waits differently would be compared for its waits. ``at_once=True`` is the loop that
does not wait at all.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["DEADLOCKS", "Conflict", "again", "is_passing", "note_deadlock"]

T = TypeVar("T")

#: Serialization failure, deadlock; lock timeout, deadlock, and "record has changed" of MariaDB.
_CODES = {"40001", "40P01", 1205, 1213, 1020}
_DEADLOCK = {"40P01", 1213}
_FIRST, _MOST = 0.02, 1.0

#: Deadlocks that this process has seen, for each driver.
DEADLOCKS: Counter[str] = Counter()


class Conflict(Exception):
    """A checked UPDATE has met no row."""


def again(
    attempt: Callable[[], T],
    *,
    on: tuple[type[Exception], ...] = (Conflict,),
    at_once: bool = False,
) -> T:
    """``attempt()``, as often as it needs."""
    number = 0
    while True:
        try:
            return attempt()
        except Exception as error:
            if not (isinstance(error, on) or is_passing(error)):
                raise
        if not at_once:
            time.sleep(random.uniform(0, min(_MOST, _FIRST * 2 ** min(number, 20))))
        number += 1


def note_deadlock(error: BaseException) -> None:
    """Count an error of a driver, if it is a deadlock."""
    if _codes(error) & _DEADLOCK:
        DEADLOCKS[type(error).__module__] += 1


def is_passing(error: BaseException | None) -> bool:
    """Whether the database has ended the work for the sake of another one."""
    while error is not None:
        if _codes(error) & _CODES:
            return True
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False


def _codes(error: BaseException) -> set[Any]:
    return {getattr(error, "sqlstate", None), *_number(error)}


def _number(error: BaseException) -> tuple[int, ...]:
    """What MariaDB's drivers have in the first place."""
    return tuple(given for given in error.args[:1] if isinstance(given, int))
