"""Versions that SQLite makes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.tokens.timestamp import NextServerTime, ServerTime

# %f is seconds with three digits, as fine as the clock is (https://sqlite.org/lang_datefunc.html);
# SQLAlchemy reads and writes six.
_FORMAT = "'%Y-%m-%d %H:%M:%f000'"


@compiles(ServerTime, "sqlite")
def _server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    return _moment(compiler, "'now'")


@compiles(NextServerTime, "sqlite")
def _next_server_time(element: NextServerTime, compiler: Any, **options: Any) -> str:
    old = compiler.process(element.clauses, **options)
    now, after = _moment(compiler, "'now'"), _moment(compiler, old, "'+0.001 seconds'")
    return f"max({now}, {after})"


def _moment(compiler: Any, *when: str) -> str:
    """``%`` is written twice for drivers whose parameters begin with it."""
    text = _FORMAT.replace("%", "%%") if compiler.preparer._double_percents else _FORMAT
    return f"strftime({', '.join((text, *when))})"
