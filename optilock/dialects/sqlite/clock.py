"""SQLite's clock, as fine as a millisecond: see :mod:`optilock.conditions.clock`.

``'now'`` is the time at which a statement first asks for it, and the statement has its locks then.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.conditions.clock import Clock, Later
from optilock.dialects.sqlite.migrations import moment


@compiles(Clock, "sqlite")
def _clock(element: Clock, compiler: Any, **options: Any) -> str:
    return moment(compiler, "'now'")


@compiles(Later, "sqlite")
def _later(element: Later, compiler: Any, **options: Any) -> str:
    begin, length = (compiler.process(one, **options) for one in element.clauses)
    return moment(compiler, begin, f"({length} / 1000.0) || ' seconds'")
