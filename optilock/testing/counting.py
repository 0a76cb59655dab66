"""Count the statements that a piece of work sends, and read them.

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
those that were open before the block as well, in whatever thread.

BEGIN, COMMIT and ROLLBACK are calls of the driver, not statements, and are not counted; savepoints
are statements, and are. Not counted is what SQLAlchemy asks a server on its first connection, and
what somebody sends over a cursor of the driver's own. Round trips are not counted either: one
``executemany`` is one of them with some drivers, and one a row with others.
:func:`optilock.testing.wire` counts them where they happen.
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
    #: Was the driver's ``executemany`` called, and not its ``execute``?
    executemany: bool
    #: Sets of parameters: 1, or those of the ``executemany``.
    rows: int = 1


class Sent:
    """What was sent so far, in order; it can be read inside the block and after it."""

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
    """Record what goes over ``engine`` until the block is left.

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
    """The engine whose events are asked; an AsyncEngine is a shell around it."""
    found = getattr(engine, "sync_engine", engine)
    if not isinstance(found, Engine):
        raise ConfigurationError(
            f"count_statements() got {type(engine).__name__!r}: give it the Engine or AsyncEngine"
            " that the sessions are bound to."
        )
    return found
