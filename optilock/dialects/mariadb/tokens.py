"""Versions that MariaDB makes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.dialects.triggers import Names, TriggerDDL
from optilock.tokens.timestamp import NextServerTime, ServerTime


@compiles(ServerTime, "mysql", "mariadb")
def _server_time(element: ServerTime, compiler: Any, **options: Any) -> str:
    return "utc_timestamp(6)"


@compiles(NextServerTime, "mysql", "mariadb")
def _next_server_time(element: NextServerTime, compiler: Any, **options: Any) -> str:
    old = compiler.process(element.clauses, **options)
    return f"greatest(utc_timestamp(6), {old} + interval 1 microsecond)"


def version_trigger(names: Names) -> TriggerDDL:
    source = f"SET NEW.{names.column} = COALESCE(OLD.{names.column}, 0) + 1"
    return TriggerDDL(
        create=(
            f"CREATE TRIGGER {names.qualified_trigger} BEFORE UPDATE ON {names.table}"
            f" FOR EACH ROW {source}",
        ),
        drop=(f"DROP TRIGGER IF EXISTS {names.qualified_trigger}",),
        source=source,
    )
