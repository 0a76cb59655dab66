"""Versions that PostgreSQL makes: its time, the trigger that moves one, and the guard trigger.

A write that moves the version is let through by the trigger's WHEN, before any function is called.
In the function rows are compared as they are stored (``*=``), because some types (json, point) have
no equality (https://www.postgresql.org/docs/current/functions-comparisons.html, 9.25.6). A column
that is added later counts by itself.

Triggers of one kind fire in the order of their names; one that comes later and changes the row
again is not seen by this one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles

from optilock.dialects.quoting import literal, quoted
from optilock.dialects.triggers import GuardTriggers, Names, TriggerDDL
from optilock.tokens.guard_trigger import GuardTrigger
from optilock.tokens.timestamp import NextServerTime, ServerTime
from optilock.tokens.unique import RandomUuid

__all__ = ["NO_BUMP", "PostgreSQLGuard"]


#: The transaction-local setting that announces ``no_bump``.
NO_BUMP = "optilock.no_bump"


@compiles(RandomUuid, "postgresql")
def _random_uuid(element: RandomUuid, compiler: Any, **options: Any) -> str:
    """A core function since PostgreSQL 13."""
    return "gen_random_uuid()"


class PostgreSQLGuard(GuardTriggers):
    names_columns = False
    catalogue = (
        "SELECT c.relname, t.tgname, p.prosrc, t.tgenabled IN ('O', 'A'), t.tgparentid <> 0"
        " FROM pg_trigger t"
        " JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE NOT t.tgisinternal"
        " AND n.nspname = COALESCE(CAST(:schema AS text), current_schema())"
    )

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        trigger, table = quoted(self.dialect, guard.name), self.table(guard)
        version = f"{self.new(guard.column)} = {self.old(guard.column)}"
        source = self.source(guard)
        tag = "$optilock$" if "$optilock$" not in source else "$optilock_guard$"
        return (
            f"CREATE OR REPLACE FUNCTION {self.trigger(guard)}() RETURNS trigger"
            f" LANGUAGE plpgsql AS {tag}{source}{tag}",
            f"DROP TRIGGER IF EXISTS {trigger} ON {table}",
            f"CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW"
            f" WHEN ({version}) EXECUTE FUNCTION {self.trigger(guard)}()",
        )

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (
            f"DROP TRIGGER IF EXISTS {quoted(self.dialect, guard.name)} ON {self.table(guard)}",
            f"DROP FUNCTION IF EXISTS {self.trigger(guard)}()",
        )

    def source(self, guard: GuardTrigger) -> str:
        ignored = "".join(
            f"    counted.{quoted(self.dialect, name)} := {self.old(name)};\n"
            for name in guard.ignore
        )
        return (
            f"\n{guard.mark}\nDECLARE counted record;\nBEGIN\n"
            f"    IF current_setting('{NO_BUMP}', true) = 'on' THEN RETURN NEW; END IF;\n"
            f"    counted := NEW;\n{ignored}"
            "    IF counted *= OLD THEN RETURN NEW; END IF;\n"
            f"{self._act(guard)}END\n"
        )

    def _act(self, guard: GuardTrigger) -> str:
        if guard.policy == "bump":
            moved = f"    {self.new(guard.column)} := {self.following(guard)};\n"
            return f"{moved}    RETURN NEW;\n"
        hint = f"Set {guard.column} to another value in the same UPDATE, or write through optilock."
        return (
            f"    RAISE EXCEPTION USING MESSAGE = {literal(self.refusal(guard))},\n"
            f"        HINT = {literal(hint)}, ERRCODE = 'integrity_constraint_violation';\n"
        )


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
