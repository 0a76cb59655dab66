"""How many statements a piece of work sends: counted where the engine hands them to the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

__all__ = ["counted"]


def counted(engine: Engine, work: Callable[[], Any]) -> int:
    """Statements that ``work`` sends on ``engine``; it is not timed, a listener costs time."""
    sent: list[str] = []

    def before_cursor_execute(connection: Any, cursor: Any, statement: str, *further: Any) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", before_cursor_execute)
    try:
        work()
    finally:
        event.remove(engine, "before_cursor_execute", before_cursor_execute)
    return len(sent)
