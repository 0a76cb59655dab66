"""What ends a transaction before its COMMIT: asked by optilock.dialects.transaction_ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from optilock.dialects.feature import Feature


class Ends(Feature):
    """How a transaction ends with a statement or an error, and what the driver knows of it."""

    def ended_by(
        self, error: BaseException, connection: sa.Connection | None = None
    ) -> bool | None:
        """Return whether the database has rolled back the *whole* transaction with ``error``.

        The next statement is then the first of another one. The ``connection`` that has raised the
        error may be asked. ``None``: it is unknown, and COMMIT is refused.
        """
        return False if self.fails_whole else None

    def may_restart(self, statement: str) -> bool:
        """Return whether a statement may end the transaction and begin another one at once."""
        return False

    #: Whether an error, also one of RELEASE, leaves a transaction that can only roll back; its
    #: COMMIT does so silently.
    fails_whole: bool = False

    def knows_failed(self, connection: Any) -> bool | None:
        """Return whether a driver's connection is in a transaction that failed; None: unknown."""
        return None

    def transaction_failed(self, connection: sa.Connection) -> bool:
        """Return the same after an error, where the driver does not know it."""
        return False

    #: Whether SAVEPOINT is sent without a round trip.
    savepoints_are_free: bool = False

    def is_without_savepoint(self, error: BaseException) -> bool:
        """Return whether RELEASE failed because there is no such savepoint."""
        return True

    def open_transactions(self, connection: Any) -> Callable[[], bool | None]:
        """Return a function that asks a driver's connection whether it is in a transaction.

        Its answer is ``None`` where the driver does not know.
        """
        return lambda: None

    def has_open_pipeline(self, connection: Any) -> bool:
        """Return whether the driver sends statements without waiting for their results."""
        return False
