"""Versions that PostgreSQL makes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.tokens.timestamp import NextServerTime, ServerTime


@compiles(ServerTime, "postgresql")
def _server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    """Not ``now()``, which is the time at which the transaction began."""
    return "clock_timestamp()"


@compiles(NextServerTime, "postgresql")
def _next_server_time(element: NextServerTime, compiler: Any, **options: Any) -> str:
    old = compiler.process(element.clauses, **options)
    return f"greatest(clock_timestamp(), {old} + interval '1 microsecond')"
