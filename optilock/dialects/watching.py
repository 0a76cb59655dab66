"""Which connections wait for a lock of another one: asked by optilock.testing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from optilock.dialects.feature import Feature


class Watching(Feature):
    """What shows that a connection waits, or that its statement is refused in place of a wait."""

    #: Whether a connection of the server waits for a lock; ``{}`` is its number there.
    lock_question: str | None = None

    #: Seconds between two questions, for an answer that is not the one of the question before.
    lock_question_pause: float = 0.005

    def number_of(self, connection: Any) -> int | None:
        """The number on its server of a driver's connection, if the driver knows it."""
        return None

    def who_waits(self, cursor: Any, numbers: Collection[int]) -> frozenset[int] | None:
        """Return those of our connections that wait for a lock of another connection.

        The driver's ``cursor`` is of a connection of its own, in autocommit. ``None``: there is no
        answer as new as the question.
        """
        return None

    #: A statement that meets a lock is refused at once with :attr:`watched_settings`, and not kept
    #: waiting: :meth:`is_busy` recognises such errors.
    refuses_when_busy: bool = False

    def is_busy(self, error: BaseException) -> bool:
        """Return whether another connection has a lock, and the same call may succeed later."""
        return False

    #: Settings for connections whose waits are watched, and the statements that undo them. The
    #: last setting may be refused for want of a privilege.
    watched_settings: tuple[str, ...] = ()

    def is_in_memory(self, connection: Any) -> bool:
        """Return whether the database is one of this connection alone."""
        return False
