"""The statements that a piece of work sends, counted and recorded.

::

    from optilock.testing import count_statements

    def test_a_rename_is_one_update(engine, SessionLocal):
        with SessionLocal() as session:
            session.get_one(Page, 1).title = "Start"
            with count_statements(engine) as sent:
                session.flush()
            assert sent.count == 1
            assert sent.statements[0].text.startswith("UPDATE pages")

A record is made where SQLAlchemy hands a statement to the driver's cursor, with the text that the
driver gets, before the driver has it: a statement that the database refuses is counted too. One
``executemany`` is one record, with the number of its ``rows``. All connections of the engine count,
in every thread, also those that were open before the block.

BEGIN, COMMIT and ROLLBACK are calls of the driver, not statements, and are not counted; savepoints
are statements, and are. SQLAlchemy's own questions on a first connection are not counted, nor are
statements that your code sends over a cursor of the driver. Round trips are not counted either: one
``executemany`` is one round trip with some drivers, and one a row with others.
:func:`optilock.testing.wire` counts them on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from optilock.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["Sent", "Statement", "count_statements"]


@dataclass(frozen=True)
class Statement:
    """A statement as the driver was given it."""

    text: str
    #: The driver's ``executemany`` was called, and not its ``execute``.
    executemany: bool
    #: Sets of parameters: 1, or those of the ``executemany``.
    rows: int = 1


class Sent:
    """The statements so far, in order; it can be read inside the block and after it."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []

    def __repr__(self) -> str:
        return f"<Sent {self.count} statements>"

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(self._statements)

    @property
    def count(self) -> int:
        return len(self._statements)


@contextmanager
def count_statements(engine: Engine | AsyncEngine) -> Iterator[Sent]:
    """Record the statements of ``engine`` until the block is left.

    Raises ``ConfigurationError`` for anything that is not an ``Engine`` or an ``AsyncEngine``.
    """
    recorded, sent = _sync(engine), Sent()

    def before_cursor_execute(
        connection: Any, cursor: Any, text: str, parameters: Any, context: Any, executemany: bool
    ) -> None:
        rows = len(parameters) if executemany else 1
        sent._statements.append(Statement(text, executemany, rows))

    event.listen(recorded, "before_cursor_execute", before_cursor_execute)
    try:
        yield sent
    finally:
        event.remove(recorded, "before_cursor_execute", before_cursor_execute)


def _sync(engine: Any) -> Engine:
    """Return the engine that has the events; an AsyncEngine is a shell around it."""
    found = getattr(engine, "sync_engine", engine)
    if not isinstance(found, Engine):
        raise ConfigurationError(
            f"count_statements() got {type(engine).__name__!r}: give it the Engine or AsyncEngine"
            " that the sessions are bound to."
        )
    return found
