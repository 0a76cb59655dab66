"""The guard trigger on PostgreSQL.

A write that moves the version is let through by the trigger's WHEN, before any function is called.
In the function rows are compared as they are stored (``*=``), because some types (json, point) have
no equality (https://www.postgresql.org/docs/current/functions-comparisons.html, 9.25.6). A column
that is added later counts by itself.

Triggers of one kind fire in the order of their names; one that comes later and changes the row
again is not seen by this one.
"""

from __future__ import annotations

from optilock.dialects.guard_triggers import GuardTriggers
from optilock.dialects.quoting import literal, quoted
from optilock.tokens.guard_trigger import GuardTrigger

__all__ = ["NO_BUMP", "PostgreSQLGuard"]

#: The transaction-local setting that announces ``no_bump``.
NO_BUMP = "optilock.no_bump"


class PostgreSQLGuard(GuardTriggers):
    random = "gen_random_uuid()"
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
