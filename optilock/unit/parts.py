"""What an option of a unit of work is: a *part*, which is told when the unit gets somewhere.

A new option is a file with a part and one line in ``optilock/unit/options.py``; the unit itself
does not change. A part that needs more than these moments listens to the session's own events
from ``begin``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session

__all__ = ["Part"]


class Part:
    """The moments of a unit of work. One object serves many units: what it notes, it notes on
    ``session.info`` or ``connection.info``."""

    def engine_options(self, engine: Engine) -> Mapping[str, Any]:
        """Execution options of the engine, taken when the session first asks for it."""
        return {}

    def begin(self, session: Session) -> None:
        """The session is new; nothing has been sent."""

    def connected(self, session: Session, connection: Connection) -> None:
        """A transaction has begun on one more connection; nothing has been sent by the session."""

    def before_flush(self, session: Session) -> None:
        """The body is over without an error; what is pending will be flushed next."""

    def before_commit(self, session: Session) -> None:
        """Everything is flushed; COMMIT comes next."""

    def after(self, session: Session, error: BaseException | None) -> None:
        """The transaction is over, committed when ``error`` is None; the session closes next."""
