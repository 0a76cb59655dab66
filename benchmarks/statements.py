"""What a piece of work does, counted and not timed: statements sent, Python functions called.

Statements are counted where the engine hands them to the driver. Calls of Python functions are the
same on every machine, and in every run but for a few.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

__all__ = ["called", "counted"]


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


def called(work: Callable[[], Any]) -> int:
    """Python functions that ``work`` calls, once it has made what it makes once."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    work()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
