"""Versions that SQLite makes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.dialects.triggers import Names, TriggerDDL
from optilock.tokens.timestamp import NextServerTime, ServerTime
from optilock.undocumented import double_percents

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
    text = _FORMAT.replace("%", "%%") if double_percents(compiler.dialect) else _FORMAT
    return f"strftime({', '.join((text, *when))})"


def version_trigger(names: Names) -> TriggerDDL:
    """After the UPDATE, because SQLite's triggers cannot change the row that is being written.

    The inner UPDATE moves the version itself, so the condition also ends the recursion where
    ``recursive_triggers`` is on (https://sqlite.org/pragma.html#pragma_recursive_triggers).
    """
    row = " AND ".join(f"{key} = NEW.{key}" for key in names.keys or ("_rowid_",))
    column, table = names.column, names.bare_table
    does = (
        f"AFTER UPDATE ON {table}"
        f" FOR EACH ROW WHEN NEW.{column} IS OLD.{column}"
        f" BEGIN UPDATE {table} SET {column} = COALESCE(OLD.{column}, 0) + 1 WHERE {row}; END"
    )
    return TriggerDDL(
        create=(f"CREATE TRIGGER {names.qualified_trigger} {does}",),
        drop=(f"DROP TRIGGER IF EXISTS {names.qualified_trigger}",),
        source=f"CREATE TRIGGER {names.trigger} {does}",  # kept without a schema
    )
