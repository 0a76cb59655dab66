"""Versions that PostgreSQL makes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.dialects.triggers import Names, TriggerDDL
from optilock.tokens.timestamp import NextServerTime, ServerTime


@compiles(ServerTime, "postgresql")
def _server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    """Not ``now()``, which is the time at which the transaction began."""
    return "clock_timestamp()"


@compiles(NextServerTime, "postgresql")
def _next_server_time(element: NextServerTime, compiler: Any, **options: Any) -> str:
    old = compiler.process(element.clauses, **options)
    return f"greatest(clock_timestamp(), {old} + interval '1 microsecond')"


def version_trigger(names: Names) -> TriggerDDL:
    """A function and its trigger, which share their name; one function a table."""
    column, name = names.column, names.qualified_trigger
    source = f" BEGIN NEW.{column} := COALESCE(OLD.{column}, 0) + 1; RETURN NEW; END "
    return TriggerDDL(
        create=(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${source}$$",
            f"CREATE TRIGGER {names.trigger} BEFORE UPDATE ON {names.table}"
            f" FOR EACH ROW EXECUTE FUNCTION {name}()",
        ),
        drop=(
            f"DROP TRIGGER IF EXISTS {names.trigger} ON {names.table}",
            f"DROP FUNCTION IF EXISTS {name}()",
        ),
        source=source,
    )
