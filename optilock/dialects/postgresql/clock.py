"""PostgreSQL's clock: see :mod:`optilock.conditions.clock`."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.conditions.clock import Clock, Later


@compiles(Clock, "postgresql")
def _clock(element: Clock, compiler: Any, **options: Any) -> str:
    return "clock_timestamp()"


@compiles(Later, "postgresql")
def _later(element: Later, compiler: Any, **options: Any) -> str:
    moment, length = (compiler.process(one, **options) for one in element.clauses)
    return f"({moment} + {length} * interval '1 millisecond')"
