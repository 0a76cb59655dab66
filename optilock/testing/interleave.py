"""Step sessions by hand: who does what, and in which order, is written in the test.

::

    from optilock.testing import interleave

    def test_the_second_editor_is_told(SessionLocal):
        with interleave(SessionLocal, "alice", "bob") as (alice, bob):
            page = alice.do(lambda session: session.get_one(Page, 1))
            bob.do(lambda session: rename(session, "Bob's title"))
            bob.commit()

            page.title = "Alice's title"
            with pytest.raises(ConcurrencyError):
                alice.commit()

Every side has a session and a thread of its own. ``do`` runs a step there, waits for it, and gives
its value or raises its error. A step that has to wait for a lock is ``start``\\ ed, and the others
go on::

            alice.do(lambda session: session.flush())       # has the row's lock
            step = bob.start(lambda session: session.flush())
            step.blocked()                                  # bob waits for it
            alice.commit()
            step.result()                                   # bob's value, or his error

What makes the sessions is a ``sessionmaker``, watched or not, an ``Engine``, or any function that
gives a context manager with a session in it; ``lambda: UnitOfWork(SessionLocal)`` steps units of
work, and ``leave()`` is then the end of the block, where the unit commits.

Nothing sleeps for a result. ``blocked()`` asks PostgreSQL and MariaDB whether the connection waits
for a lock, over one more connection of the same pool. SQLite has nobody to ask: there a step that
has begun a transaction and has not ended after ``GRACE`` seconds counts as blocked, so give such
engines a longer ``timeout`` in their ``connect_args``.

At the end of the block every session is rolled back and closed, those that wait for others last. An
error of a step whose ``result()`` nobody asked for comes out there. Objects may be read and changed
between the steps; what loads from the database belongs in a step. In case of doubt about who is
stuck: no wait is longer than ``PATIENCE`` seconds unless ``timeout=`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.testing.sides import Side
from optilock.testing.steps import GRACE, PATIENCE, OutOfStep, Step

__all__ = ["GRACE", "PATIENCE", "OutOfStep", "Side", "Step", "interleave"]

S = TypeVar("S", bound=Session)


@contextmanager
def interleave(
    sessions: Callable[[], AbstractContextManager[S]] | Engine, *names: str
) -> Iterator[tuple[Side[S], ...]]:
    """One :class:`Side` for each name, with a session of its own.

    Raises ``ConfigurationError`` without names, when two are alike, and for what makes no sessions.
    """
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"interleave() got the names {names!r}: name every side once, for example"
            ' interleave(SessionLocal, "alice", "bob").'
        )
    make = _factory(sessions)
    sides: list[Side[S]] = []
    try:
        for name in names:
            sides.append(Side(name, make))
        yield tuple(sides)
    except BaseException:
        _end(sides)
        raise
    _end(sides)
    stuck = [side.name for side in sides if not side.has_left(0)]
    if stuck:
        raise OutOfStep(
            f"{', '.join(stuck)} did not end within {PATIENCE:g} s: a step waits for a lock that"
            " somebody outside of interleave() holds."
        )
    for error in (error for side in sides for error in side.unseen_errors()):
        raise error


def _factory(sessions: Any) -> Callable[[], AbstractContextManager[Any]]:
    if isinstance(sessions, Engine):
        return lambda: Session(sessions)
    if not callable(sessions):
        raise ConfigurationError(
            f"interleave() got {sessions!r}, which makes no sessions: give it a sessionmaker, an"
            " Engine, or a function such as lambda: UnitOfWork(SessionLocal)."
        )
    return cast("Callable[[], AbstractContextManager[Any]]", sessions)


def _end(sides: list[Side[S]]) -> None:
    """Roll back and close: who waits for a lock gets it from those who end before."""
    for side in sides:
        side.abandon()
    for side in sides:
        side.has_left(PATIENCE)
