"""Two runs of one piece of work at once, and whether a number has moved by both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from optilock._coroutines import result_of
from optilock.dialects.transient import is_transient
from optilock.errors import ConfigurationError
from optilock.testing.interleave import OutOfStep
from optilock.testing.other_writers import mapper_of
from optilock.testing.sessions_under_test import SessionsUnderTest, call_in, opened
from optilock.unit.sessions import owner_of

__all__ = ["assert_no_lost_update"]


def assert_no_lost_update(
    under_test: SessionsUnderTest,
    work: Callable[[Any], Any],
    cls: type[Any],
    key: object,
    attribute: str,
    *,
    by: Any = 1,
    sessions: Any = None,
) -> Any:
    """Run ``work`` in two sessions at once, and compare; awaited with async sessions.

    Both have read the row before the first one commits. An error that a retry would repeat is a
    COMMIT that was not acknowledged; any other one is raised.

    Args:
        work: a function of the session that moves ``attribute`` of the row by ``by``, and neither
            commits nor rolls back.
        sessions: what to interleave in place of the fixture's sessions, such as
            ``lambda: unit_of_work(SessionLocal)``.

    Raises:
        AssertionError: the attribute has not moved by ``by`` for each acknowledged COMMIT.
        ConfigurationError: there is no such row or attribute, or it holds no number.
    """
    number = _Number(cls, key, attribute)
    sides = under_test.sides("first", "second", sessions=sessions)

    async def judge() -> None:
        async with opened(under_test.reader(cls)) as (reader,):
            before = await number.read(reader)
            async with opened(sides) as (first, second):
                commits = await _acknowledged(work, first, second)
            moved = await number.read(reader) - before
        if moved != commits * by:
            what = "1 commit was" if commits == 1 else f"{commits} commits were"
            each = "" if by == 1 else f" instead of {by} for each"
            raise AssertionError(
                f"{what} acknowledged, {attribute} moved by {moved}{each}. An update of"
                f" {number} was lost or repeated: give {cls.__name__} a version and watch() the"
                " sessions, or lock the row before it is read."
            )

    return under_test.result_of(judge())


async def _acknowledged(work: Callable[[Any], Any], first: Any, second: Any) -> int:
    """Return how many of the two commits were acknowledged."""
    await result_of(first.do(work))
    step = second.start(work)
    with suppress(OutOfStep):  # it has ended, and waits for no lock
        await result_of(step.blocked())
    await _commit(first)
    try:
        await result_of(step.result())
        await _commit(second)
    except Exception as error:
        if not is_transient(error):
            raise
        return 1
    return 2


async def _commit(side: Any) -> None:
    """Commit a session, or leave the block of a unit of work."""
    unit = await call_in(side, owner_of)
    await result_of(side.commit() if unit is None else side.leave())


@dataclass(frozen=True)
class _Number:
    """A number in a row."""

    cls: type[Any]
    key: object
    attribute: str

    def __post_init__(self) -> None:
        call = f"assert_no_lost_update({self})"
        if self.attribute not in mapper_of(call, self.cls).attrs:
            raise ConfigurationError(
                f"{call}: {self.cls.__name__} has no attribute {self.attribute!r}."
            )

    def __str__(self) -> str:
        return f"{getattr(self.cls, '__name__', self.cls)!s} {self.key!r}"

    async def read(self, reader: Any) -> Any:
        value = await call_in(reader, self._value)
        await result_of(reader.rollback())
        return value

    def _value(self, session: Session) -> Any:
        row = session.get(self.cls, self.key)
        if row is None:
            raise ConfigurationError(f"There is no {self}: store it before assert_no_lost_update.")
        value = getattr(row, self.attribute)
        if value is None:
            raise ConfigurationError(f"{self.attribute} of {self} is None: store a number there.")
        return value
