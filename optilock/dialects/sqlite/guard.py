"""The guard trigger on SQLite.

A trigger cannot change the row that is being written, so the version moves in a second UPDATE after
it. That one moves the version, so the trigger does not fire for it, with or without
``recursive_triggers`` (https://sqlite.org/lang_createtrigger.html).
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.engine import Connection

from optilock.dialects.guard_triggers import Found, GuardTriggers
from optilock.dialects.quoting import literal, quoted
from optilock.tokens.guard_trigger import GuardTrigger

__all__ = ["SQLiteGuard"]


class SQLiteGuard(GuardTriggers):
    random = "lower(hex(randomblob(16)))"

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (*self.drop(guard), f"CREATE TRIGGER {self.trigger(guard)} {self._does(guard)}")

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (f"DROP TRIGGER IF EXISTS {self.trigger(guard)}",)

    def source(self, guard: GuardTrigger) -> str:
        """SQLite keeps the statement, without the schema."""
        return f"CREATE TRIGGER {quoted(self.dialect, guard.name)} {self._does(guard)}"

    def _does(self, guard: GuardTrigger) -> str:
        table = quoted(self.dialect, guard.table)
        when = "AFTER" if guard.policy == "bump" else "BEFORE"
        return (
            f"{when} UPDATE ON {table} FOR EACH ROW"
            f" WHEN {self._left_alone(guard)} BEGIN {guard.mark} {self._act(guard, table)}; END"
        )

    def found(self, connection: Connection, schema: str | None) -> list[Found]:
        """Every database file that is attached has a catalogue of its own."""
        master = f"{quoted(self.dialect, schema)}.sqlite_master" if schema else "sqlite_master"
        rows = connection.execute(
            text(f"SELECT tbl_name, name, sql FROM {master} WHERE type = 'trigger'")
        )
        return [Found(*row) for row in rows]

    def _act(self, guard: GuardTrigger, table: str) -> str:
        if guard.policy == "reject":
            return f"SELECT RAISE(ABORT, {literal(self.refusal(guard))})"
        version = quoted(self.dialect, guard.column)
        row = " AND ".join(
            f"{quoted(self.dialect, key)} IS {self.new(key)}" for key in guard.keys or ("_rowid_",)
        )
        return f"UPDATE {table} SET {version} = {self.following(guard)} WHERE {row}"

    def _left_alone(self, guard: GuardTrigger) -> str:
        same = f"{self.new(guard.column)} = {self.old(guard.column)}"
        if not guard.ignore:
            return same
        changed = (
            f"{self.new(name)} COLLATE BINARY IS NOT {self.old(name)}" for name in guard.columns
        )
        return f"{same} AND ({' OR '.join(changed)})"
